"""A hook of MkDocs: adds what the documents link to outside docs/, and keeps the site offline.

The documents link to each other, to the code and to the README by relative paths, as they are in
the repository. On the site, everything that is outside docs/ is below source/: Markdown as pages,
other files as pages with their text, folders as lists of their files.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
DOCS, SOURCE, INDEX = "docs", "source", "README.md"
ASSETS = ("iframe-worker.js", "site.css")  # next to this file; mkdocs.yml names them
LINK = re.compile(r"(?<=\]\()(?!https?:|mailto:|#)([^)#\s]+)(?=[)#])")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
LOADED = re.compile(r'<(?:script|img|iframe|link)\b[^>]*\b(?:src|href)="(?:https?:)?//')
LANGUAGES = {".py": "python", ".toml": "toml", ".yaml": "yaml", ".yml": "yaml", ".proto": "proto"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for everything outside docs/ that a page links to, directly or indirectly.

    Raises:
        PluginError: if a link leads nowhere.
    """
    pages = [PurePosixPath(DOCS, each.src_uri) for each in files.documentation_pages()]
    seen = set(pages)
    while pages:
        page = pages.pop()
        for target in sorted(targets_of(page)):
            if not (ROOT / target).exists():
                raise PluginError(f"{page} links to {target}, which does not exist")
            if target not in seen and target.parts[0] != DOCS:
                seen.add(target)
                files.append(File.generated(config, page_of(target), content=text_of(target)))
                if target.suffix == ".md":
                    pages.append(target)
    for name in ASSETS:
        file = Path(__file__).with_name(name)
        files.append(File.generated(config, f"assets/{name}", abs_src_path=str(file)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite links from paths in the repository to paths on the site."""
    return with_site_links(markdown, repository_path(page.file.src_uri))


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Return the page unchanged.

    Raises:
        PluginError: if it would load something from another host.
    """
    if loaded := LOADED.search(output):
        raise PluginError(f"{page.file.src_uri} loads from another host: {loaded[0]}...")
    return output


def page_of(path: PurePosixPath) -> str:
    """Return the path of a page, from the root of the site, for a path of the repository."""
    if path.parts[0] == DOCS:
        # a folder of documents is described by the index of all
        return str(path.relative_to(DOCS)) if (ROOT / path).is_file() else INDEX
    if path.suffix == ".md":
        return f"{SOURCE}/{path}"
    return f"{SOURCE}/{path}.md"


def repository_path(src_uri: str) -> PurePosixPath:
    """Return the path in the repository for the path of a Markdown page: the reverse of page_of."""
    path = PurePosixPath(src_uri)
    return path.relative_to(SOURCE) if path.parts[0] == SOURCE else PurePosixPath(DOCS, path)


def targets_of(path: PurePosixPath) -> set[PurePosixPath]:
    """Return the paths, in the repository, that a Markdown file links to."""
    text = FENCE.sub("", (ROOT / path).read_text())
    return {_resolved(path, link) for link in LINK.findall(text)}


def with_site_links(markdown: str, path: PurePosixPath) -> str:
    """Return a page's text with links that are relative to its place on the site.

    Args:
        markdown: the text.
        path: of the file in the repository.
    """
    folder = posixpath.dirname(page_of(path))

    def rewritten(link: re.Match[str]) -> str:
        return posixpath.relpath(page_of(_resolved(path, link[1])), folder or ".")

    pieces, end = [], 0
    for fence in FENCE.finditer(markdown):
        pieces += [LINK.sub(rewritten, markdown[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*pieces, LINK.sub(rewritten, markdown[end:])])


def text_of(path: PurePosixPath) -> str:
    """Return the Markdown of a page for a file or folder outside docs/."""
    file = ROOT / path
    if path.suffix == ".md":
        return file.read_text()
    head = f"---\nsearch:\n  exclude: true\n---\n\n# {path}\n\n"
    if file.is_dir():
        names = sorted(each.name for each in file.iterdir() if each.name != "__pycache__")
        return head + "".join(f"- `{name}`\n" for name in names)
    return f"{head}````{LANGUAGES.get(path.suffix, 'text')}\n{file.read_text()}\n````\n"


def _resolved(page: PurePosixPath, link: str) -> PurePosixPath:
    return PurePosixPath(posixpath.normpath(page.parent / link))
