"""A headless browser that opens a page and says what it did.

Chromium is asked for the page's document and for a log of all that it fetched;
a script put into a copy of the page writes down errors, canvases and their
pixels where they can be read.
"""

import base64
import dataclasses
import json
import pathlib
import re
import shutil
import subprocess

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
  "--headless",
  "--no-sandbox",
  "--disable-gpu",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
  "--disable-extensions",
  "--window-size=1280,3000",
  "--virtual-time-budget=60000",
  "--enable-logging=stderr",
  # Whoever asks for a host is told that there is none.
  "--host-resolver-rules=MAP * ~NOTFOUND",
)

# First of all scripts: what goes wrong is kept.
_LISTEN = """<script>
window.seen = {errors: []};
const say = (...words) => window.seen.errors.push(words.map(String).join(" "));
addEventListener("error", (e) => say("error", e.message));
addEventListener("unhandledrejection", (e) => say("rejected", e.reason));
addEventListener("securitypolicyviolation", (e) => say("csp", e.blockedURI));
for (const name of ["error", "warn"]) {
  const old = console[name];
  console[name] = (...words) => { say(name, ...words); old(...words); };
}
</script>"""
# Last of all: when Bokeh is idle, the colours of each figure's canvas, and the
# tooltips under a mouse that crosses the rows of the timeline.
_LOOK = """<script>
function within(root, selector) {
  const found = [...root.querySelectorAll(selector)];
  for (const e of root.querySelectorAll("*"))
    if (e.shadowRoot) found.push(...within(e.shadowRoot, selector));
  return found;
}
async function hover() {
  const tips = new Set();
  const timeline = document.querySelector("#timeline");
  const [target] = timeline ? within(timeline, ".bk-events") : [];
  if (!target) return [];
  const box = target.getBoundingClientRect();
  const points = [];
  for (let y = box.top + 60; y < box.bottom - 60; y += 30)
    for (let x = box.left + 160; x < box.right; x += 60) points.push([x, y]);
  for (const [x, y] of points) {
    target.dispatchEvent(new PointerEvent("pointermove", {
      bubbles: true, composed: true, pointerType: "mouse", isPrimary: true,
      clientX: x, clientY: y,
    }));
    await new Promise((resolve) => setTimeout(resolve, 30));
    for (const tip of within(document, ".bk-Tooltip")) {
      const styles = tip.shadowRoot.querySelectorAll("style");
      const css = [...styles].map((e) => e.textContent).join("");
      tips.add(tip.shadowRoot.textContent.slice(css.length));
    }
  }
  return [...tips];
}
function colors(canvas) {
  const size = [canvas.width, canvas.height];
  if (!size[0] || !size[1]) return {};
  const data = canvas.getContext("2d").getImageData(0, 0, ...size).data;
  const count = {};
  for (let i = 0; i < data.length; i += 4) {
    if (data[i + 3] < 200) continue;
    const hex = [0, 1, 2].map((k) => data[i + k].toString(16).padStart(2, "0"));
    const key = hex.join("");
    count[key] = (count[key] || 0) + 1;
  }
  return count;
}
async function look() {
  const seen = window.seen;
  seen.tooltips = await hover();
  seen.figures = {};
  for (const section of document.querySelectorAll("section")) {
    const all = within(section, "canvas");
    if (!all.length) continue;
    const sum = {};
    for (const canvas of all)
      for (const [key, n] of Object.entries(colors(canvas)))
        sum[key] = (sum[key] || 0) + n;
    const box = section.getBoundingClientRect();
    seen.figures[section.id] = {colors: sum, width: box.width};
  }
  seen.fetched = performance.getEntriesByType("resource").map((e) => e.name);
  seen.overflow = document.documentElement.scrollWidth - innerWidth;
  seen.text = document.body.innerText;
  const pre = document.createElement("pre");
  pre.id = "seen";
  pre.textContent = btoa(unescape(encodeURIComponent(JSON.stringify(seen))));
  document.body.append(pre);
}
const timer = setInterval(() => {
  const docs = window.Bokeh ? Bokeh.documents : [];
  if (docs.length && docs.every((d) => d.is_idle)) {
    clearInterval(timer);
    setTimeout(look, 500);
  }
}, 100);
</script>"""


@dataclasses.dataclass(frozen=True)
class Seen:
  """Observations of the browser.

  Attributes:
    errors: of the console, of scripts, of the page's policy.
    figures: section -> its colours, "rrggbb" -> pixels, and its width.
    fetched: addresses that the page asked for.
    requests: addresses outside of the file that the page had fetched.
    overflow: pixels by which the page is wider than the window.
    text: what a reader can read.
    tooltips: what appears under the mouse.
  """

  errors: list
  figures: dict
  fetched: list
  requests: list
  overflow: float
  text: str
  tooltips: list


def find():
  """The browser's path; skips the test where there is none."""
  for name in NAMES:
    path = shutil.which(name)
    if path:
      return path
  pytest.skip(f"no browser here: none of {', '.join(NAMES)} is installed")


def open_page(path, folder):
  """Opens a page of figures and waits until they are drawn.

  Args:
    path: the .html file.
    folder: an empty one, for the browser's own files.
  """
  text = pathlib.Path(path).read_text(encoding="utf-8")
  head, rest = text.split("<style>", 1)
  body, end = rest.rsplit("</body>", 1)
  copy = pathlib.Path(folder) / "page.html"
  copy.write_text(
    f"{head}{_LISTEN}<style>{body}{_LOOK}</body>{end}", encoding="utf-8"
  )
  log = pathlib.Path(folder) / "net.json"
  done = subprocess.run(
    [
      find(),
      *FLAGS,
      f"--user-data-dir={folder}/profile",
      f"--log-net-log={log}",
      "--dump-dom",
      copy.as_uri(),
    ],
    capture_output=True,
    text=True,
    timeout=240,
    check=True,
  )
  found = re.search(r'<pre id="seen">([^<]*)</pre>', done.stdout)
  assert found, f"the page never became idle: {done.stderr[-2000:]}"
  seen = json.loads(base64.b64decode(found[1]))
  return Seen(
    errors=seen["errors"] + _console_errors(done.stderr),
    figures=seen["figures"],
    fetched=seen["fetched"],
    requests=_requests(log),
    overflow=seen["overflow"],
    text=seen["text"],
    tooltips=seen["tooltips"],
  )


def _console_errors(stderr):
  lines = [line for line in stderr.splitlines() if ":CONSOLE" in line]
  return [line for line in lines if "[bokeh" not in line]


def _requests(log):
  """Requests of the page, from the browser's own network log.

  The browser has requests of its own (the time, updates), which have no page as
  their origin.
  """
  found = set()
  for line in log.read_text(encoding="utf-8").splitlines():
    if '"initiator"' not in line:  # an event a line
      continue
    asked = json.JSONDecoder().raw_decode(line)[0]["params"]
    is_own = asked["url"].startswith(("file:", "data:", "blob:"))
    if asked["initiator"] != "not an origin" and not is_own:
      found.add(asked["url"])
  return sorted(found)
