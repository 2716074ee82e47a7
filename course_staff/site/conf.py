"""What Sphinx reads first; `course_staff.site.build` gives it the rest."""

from course_staff.site.extension import setup  # noqa: F401 - Sphinx calls it

project = html_title = "Efficient model training with PyTorch"
html_show_copyright = html_show_sphinx = False
extensions = ["myst_nb"]
exclude_patterns = ["_static"]
nb_execution_mode = "off"
nb_render_markdown_format = "gfm"  # plain Markdown knows no tables
myst_enable_extensions = ["dollarmath"]
myst_all_links_external = True  # they are written as they are to be
html_theme = "sphinx_book_theme"
html_css_files = ["course.css"]
html_js_files = [("course.js", {"priority": 100})]  # in the head, so that nothing flashes up that is to be covered
html_copy_source = False
html_show_search_summary = False  # it would fetch pages, which a browser allows no page from a folder
html_math_renderer = "mathml"
html_context = {"default_mode": "auto"}
html_theme_options = {
    "use_download_button": False,
    "use_fullscreen_button": False,
    "footer_content_items": [],
    "navbar_persistent": [],  # the search stands beside the chapters
    "show_toc_level": 2,
    "logo": {"text": project},
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
