"""What the site asks of Sphinx beside its own: formulas without scripts, covered bets, and what others show with a link."""

import html
import textwrap

from docutils import nodes
from latex2mathml.converter import convert

from course_staff.site.bets import cover

_LONGEST = 160  # letters of a description that search pages show


def setup(app) -> dict:
    """Called by Sphinx."""
    app.add_html_math_renderer("mathml", inline_renderers=(_inline, None), block_renderers=(_block, None))
    app.add_config_value("course_cards", {}, "html")
    # Before anything is drawn, so that nothing flashes up; without scripts all is seen.
    app.add_js_file(None, body="document.documentElement.classList.add('scripted')", priority=100)
    app.connect("html-page-context", _finish)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _inline(translator, node: nodes.math) -> None:
    translator.body.append(convert(node.astext()))
    raise nodes.SkipNode


def _block(translator, node: nodes.math_block) -> None:
    translator.body.append(f'<div class="formula" tabindex="0">{convert(node.astext(), display="block")}</div>')
    raise nodes.SkipNode


def _finish(app, page: str, template: str, context: dict, doctree) -> None:
    from bs4 import BeautifulSoup

    if doctree is None:
        return
    soup = BeautifulSoup(context["body"], "html.parser")
    cover(soup)
    context["body"] = str(soup)
    said = next((text for one in soup.find_all("p") if len(text := one.get_text(" ", strip=True)) > 40), "")
    picture = app.config.course_cards.get(page, app.config.course_cards["index"])
    about = {
        "description": textwrap.shorten(said, _LONGEST, placeholder=" …"),
        "og:type": "article",
        "og:title": BeautifulSoup(context["title"], "html.parser").get_text(),
        "og:description": textwrap.shorten(said, _LONGEST, placeholder=" …"),
        # The whole address where it is known, which is what those who show it want.
        "og:image": f"{app.config.html_baseurl}_static/{picture}"
        if app.config.html_baseurl
        else context["pathto"](f"_static/{picture}", 1),
        "og:image:alt": "The title of the page",
        "twitter:card": "summary_large_image",
    }
    context["metatags"] += "".join(
        f'<meta {"property" if name.startswith("og:") else "name"}="{name}" content="{html.escape(value)}" />\n'
        for name, value in about.items()
    )
