"""The documentation as a site. `make site` builds it from the Markdown here; a registry serves it under /docs/.

`staging` lays the pages out as the site has them. Sphinx makes HTML of them (`conf`, `treaty`). `archive` packs the result into
one file beside the code that serves it (`treaty_registry.pages.documentation`).
"""
