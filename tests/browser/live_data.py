"""Live data that a test sends to the page in place of the server's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from playwright.sync_api import Page

# Answers to GET /live with these snapshots, and does not close the connection.
SEND_LIVE = """(() => {
  const sent = %s;
  const real = window.fetch;
  window.fetch = (url, options) => {
    if (!String(url).endsWith("/live")) return real(url, options);
    const text = sent.map((each) => `data: ${JSON.stringify(each)}\\n\\n`).join("");
    const begin = (stream) => {
      stream.enqueue(new TextEncoder().encode(text));
      if (%s) setTimeout(() => stream.close(), 300);
    };
    return Promise.resolve(new Response(new ReadableStream({ start: begin })));
  };
})()"""


def send_live(page: Page, snapshots: Sequence[Any], *, ends: bool = False) -> None:
    """Answer GET /live with these snapshots, in every document that is opened from now on.

    Args:
        page: the page.
        snapshots: the oldest first.
        ends: whether the connection is then lost.
    """
    page.add_init_script(SEND_LIVE % (json.dumps(snapshots), json.dumps(ends)))
