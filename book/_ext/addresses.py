"""Buttons, cards and the way to say what is wrong: what needs an address and is not there without.

Two addresses are all. Of the repository: `repository: url` in _config.yml, or BOOK_REPOSITORY of
the environment. Of the published book: `html: baseurl`, or BOOK_SITE. The workflow that publishes
sets both to those of the repository it runs in.
"""

import os
import re
from html import escape
from pathlib import Path
from urllib.parse import urlencode

COLAB = "https://colab.research.google.com"
# of the Makefile, and put beside the pages by the workflow
ZIP = "from-mirrors-to-tensor-cores.zip"
BUTTONS = ("use_repository_button", "use_edit_page_button", "use_issues_button")


def fill_in(app, config):
    """Addresses of the environment go before those of the configuration."""
    options = config.html_theme_options
    repository = os.environ.get("BOOK_REPOSITORY") or options.get("repository_url") or ""
    options["repository_url"] = repository.rstrip("/")
    options.update(dict.fromkeys(BUTTONS, bool(repository)))
    site = os.environ.get("BOOK_SITE") or config.html_baseurl or ""
    config.html_baseurl = site and site.rstrip("/") + "/"
    # who shows a card asks the site for its picture, by a full address
    config.ogp_site_url = config.html_baseurl
    config.ogp_social_cards = {**config.ogp_social_cards, "enable": bool(site)}
    if site:
        import numpy as np
        from matplotlib import image

        from qrlib.teach.pictures import card

        # the small one would be the extension's own logo; it is left blank
        blank = np.full((2, 2, 3), 255, dtype=np.uint8)
        Path(app.outdir).mkdir(parents=True, exist_ok=True)
        for name, pixels in {"image": card(), "image_mini": blank}.items():
            file = Path(app.outdir) / f"card_{name}.png"
            image.imsave(file, pixels)
            config.ogp_social_cards[name] = str(file)


def on_page(app, pagename, templatename, context, doctree):
    """Colab opens notebooks only, so its button is on labs; the rest stands at the foot."""
    options = app.config.html_theme_options
    repository = options["repository_url"]
    labs = repository and pagename.startswith("notebooks/")
    options["launch_buttons"] = {"colab_url": COLAB} if labs else {}
    ways = {}
    if repository and doctree:
        # a title may have the number of its chapter in a span
        title = re.sub(r"<[^>]+>", "", context["title"])
        issue = urlencode({"title": f"{title} ({pagename}): "})
        ways["Say what is wrong or unclear on this page"] = f"{repository}/issues/new?{issue}"
    if app.config.html_baseurl:
        ways["Take the book along, to read without a network"] = app.config.html_baseurl + ZIP
    context["theme_extra_footer"] = "".join(
        f'<p><a href="{escape(href)}">{words}</a></p>' for words, href in ways.items()
    )


def setup(app):
    # before the theme reads its options
    app.connect("config-inited", fill_in, priority=400)
    app.connect("html-page-context", on_page, priority=400)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
