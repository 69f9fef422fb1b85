"use strict";
// "Try it out" calls the server that sent the page, with any prefix before /docs. If it needs no key,
// its models are listed by name, each with its example.
const MOST_MODELS = 20;
const servers = [{ url: new URL(".", document.baseURI).href.replace(/[/]$/, "") }];

const dark = matchMedia("(prefers-color-scheme: dark)");
const follow = () => document.documentElement.classList.toggle("dark-mode", dark.matches);
dark.addEventListener("change", follow);
follow();

const json = async (path) => {
  const answer = await fetch(path);
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
  return answer.json();
};

/** The models that are ready, with their examples; none if they need a key. */
const readModels = async () => {
  if (!(await json("page/access")).scopes.includes("predict")) return [];
  const { models } = await json("models");
  const ready = models.filter((each) => each.state === "ready").slice(0, MOST_MODELS);
  return Promise.all(ready.map(({ name }) => json(`models/${encodeURIComponent(name)}?full=true`)));
};

/** The calls of one model: those of any model with its name and example. */
const pathsOf = ({ name, example }, paths) =>
  ["predict", "batch-predict"].map((call) => {
    const post = structuredClone(paths[`/models/{name}/${call}`].post);
    const input = call === "predict" ? { input: example } : { inputs: [example, example] };
    post.operationId = `${post.operationId}_${name}`;
    post.tags = [`model ${name}`];
    post.parameters = post.parameters.filter((each) => each.name !== "name");
    const content = post.requestBody.content["application/json"];
    if (example != null) post.requestBody.content["application/json"] = { ...content, example: input };
    return [`/models/${name}/${call}`, { post }];
  });

/** A path without its link, which would be inside of a button: a screen reader skips it. */
const DeepLink = (_, { React }) => ({ text }) => React.createElement("span", null, text);

const start = (models) => {
  const describe = (update) => (description) => {
    const added = models.flatMap((each) => pathsOf(each, description.paths));
    const paths = { ...Object.fromEntries(added), ...description.paths };
    return update({ ...description, servers, paths });
  };
  SwaggerUIBundle({
    dom_id: "#swagger-ui",
    url: "openapi.json",
    deepLinking: true,
    defaultModelsExpandDepth: 0,
    validatorUrl: null,
    onComplete: () => document.getElementById("servers")?.setAttribute("aria-label", "Server"),
    plugins: [{
      statePlugins: { spec: { wrapActions: { updateJsonSpec: describe } } },
      wrapComponents: { DeepLink },
    }],
  });
};

readModels().then(start, (error) => {
  console.info(`The models are not listed by name: ${error.message}`);
  start([]);
});
