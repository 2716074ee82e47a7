"""What the site asks of Sphinx beside its own: links, formulas without scripts, covered bets, and previews of a page."""

import html
import re
import textwrap
from pathlib import Path

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator

from course_staff.site.bets import cover
from course_staff.site.links import Links

_SHORTEST, _LONGEST = 40, 160  # letters of a description that search pages show


def setup(app: Sphinx) -> dict:
    """Called by Sphinx."""
    app.add_html_math_renderer("mathml", inline_renderers=(_inline, None), block_renderers=(_block, None))
    app.add_config_value("course_links", {}, "env")
    app.add_config_value("course_cards", {}, "html")
    app.connect("doctree-read", _lead)
    app.connect("html-page-context", _finish)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _inline(translator: HTML5Translator, node: nodes.math) -> None:
    translator.body.append(convert(node.astext()))
    raise nodes.SkipNode


def _block(translator: HTML5Translator, node: nodes.math_block) -> None:
    translator.body.append(f'<div class="formula" tabindex="0">{convert(node.astext(), display="block")}</div>')
    raise nodes.SkipNode


def _lead(app: Sphinx, doctree: nodes.document) -> None:
    """Let every link lead to a page; one that would lead nowhere becomes its text."""
    places = app.config.course_links
    links = Links(Path(places["root"]), places["pages"], places["files"], places["source"])
    page = app.env.doc2path(app.env.docname, base=False).as_posix()
    for link in list(doctree.findall(nodes.reference)):
        if target := links.target(link.get("refuri", ""), page) if "refuri" in link else link.get("refid"):
            link["refuri"] = target
        else:
            link.replace_self(link.children)
    for raw in doctree.findall(nodes.raw):
        raw.children = [nodes.Text(links.in_html(raw.astext(), page))]


def _finish(app: Sphinx, page: str, template: str, context: dict, doctree: nodes.document | None) -> None:
    from bs4 import BeautifulSoup

    if doctree is None:
        return
    if "bet-mark" in context["body"]:
        soup = BeautifulSoup(context["body"], "html.parser")
        cover(soup)
        context["body"] = str(soup)
    cards, address = app.config.course_cards, app.config.html_baseurl
    file, line = cards.get(page, (cards["index"][0], ""))
    first = (text for paragraph in doctree.findall(nodes.paragraph) if len(text := paragraph.astext()) > _SHORTEST)
    description = line or textwrap.shorten(next(first, ""), _LONGEST, placeholder=" …")
    picture = f"_static/{file}"
    properties = {
        "description": description,
        "og:type": "article",
        "og:title": html.unescape(re.sub(r"<[^>]+>", "", context["title"])),
        "og:description": description,
        # Those who show it want the whole address.
        "og:image": f"{address}{picture}" if address else context["pathto"](picture, resource=True),
        "twitter:card": "summary_large_image",
    }
    context["metatags"] += "".join(
        f'<meta {"property" if name.startswith("og:") else "name"}="{name}" content="{html.escape(value)}" />\n'
        for name, value in properties.items()
    )
