"""The configuration of Sphinx. `docs.site.archive` runs it; the sources are those that `docs.site.staging` lays out."""

from pathlib import Path

from docs.site.search import SearchMixed
from docs.site.staging import EXTRA
from sphinx.application import Sphinx
from sphinx.config import Config

from treaty_consensus import __version__

_SITE = Path(__file__).parent
_PAGES = _SITE.parents[1] / "registry" / "treaty_registry" / "pages" / "static"

project = "Treaty"
copyright = ""
release = __version__
language = "en"
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = [EXTRA]

# A link to a test vector has a class, by which it stays as `staging` wrote it.
myst_enable_extensions = ["attrs_inline"]
myst_heading_anchors = 4
myst_links_external_new_tab = False
myst_number_code_blocks: list[str] = []
# A language that Pygments does not know is shown as text, and is no reason to refuse a page.
suppress_warnings = ["misc.highlighting_failure"]

html_theme = "treaty"
html_theme_path = [str(_SITE)]
html_title = "Treaty"
# The pages of the registry and the site share one style sheet and one mark.
html_static_path = [str(_PAGES / "treaty.css"), str(_PAGES / "mark.svg")]
html_favicon = str(_PAGES / "mark.svg")
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_show_copyright = False
html_use_index = False
html_domain_indices = False
html_permalinks_icon = "#"
html_last_updated_fmt = None
html_search_language = "en"


def setup(app: Sphinx) -> None:
    """Search Chinese words as well, and keep the pictures that HTML names."""
    app.add_search_language(SearchMixed)
    app.connect("config-inited", _keep_pictures)


def _keep_pictures(app: Sphinx, config: Config) -> None:
    config["html_extra_path"] = [str(app.srcdir / EXTRA)]
