"use strict";
// "Try it out" calls the server that sent the page, with any prefix before /docs.
const servers = [{ url: new URL(".", document.baseURI).href.replace(/[/]$/, "") }];
const callThisServer = (update) => (description) => update({ ...description, servers });
SwaggerUIBundle({
  dom_id: "#swagger-ui",
  url: "openapi.json",
  deepLinking: true,
  validatorUrl: null,
  plugins: [{ statePlugins: { spec: { wrapActions: { updateJsonSpec: callThisServer } } } }],
});
