"""Reading of HTML pages in tests."""

import html.parser

VOID = ("br", "img")


class Page(html.parser.HTMLParser):
  """Reads a page, and checks that each element is closed in turn."""

  def __init__(self, text):
    super().__init__()
    self.tags, self.open, self.rows, self.words = [], [], [], []
    self.feed(text)
    self.close()
    assert not self.open

  def handle_starttag(self, tag, attrs):
    self.tags.append(tag)
    assert not any(name.startswith("on") for name, _ in attrs)
    assert not {"href", "src", "xlink:href"} & {name for name, _ in attrs}
    if tag not in VOID:
      self.open.append(tag)
    if tag == "tr":
      self.rows.append([])
    if tag in ("td", "th"):
      self.rows[-1].append("")

  def handle_endtag(self, tag):
    assert self.open.pop() == tag

  def handle_data(self, data):
    self.words.append(data)
    if self.open[-1] in ("td", "th"):
      self.rows[-1][-1] += data


def page_of(text):
  page = Page(text)
  assert "script" not in page.tags and "http:" not in text
  return page
