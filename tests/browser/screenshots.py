"""Take pictures of a report: ``python tests/browser/screenshots.py RUN/report.html FOLDER``."""

import argparse
import shutil
from pathlib import Path

VIEWS = {
    "light": {"scheme": "light", "width": 1280},
    "dark": {"scheme": "dark", "width": 1280},
    "phone": {"scheme": "light", "width": 390},
    "phone-dark": {"scheme": "dark", "width": 390},
    "print": {"scheme": "dark", "width": 718, "media": "print"},
}


def take(report: Path, folder: Path) -> list[Path]:
    """Write one picture of the whole page for every view, and the PDF that it prints."""
    from playwright.sync_api import sync_playwright

    folder.mkdir(parents=True, exist_ok=True)
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    taken = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name, view in VIEWS.items():
            page = browser.new_page(
                viewport={"width": view["width"], "height": 900}, color_scheme=view["scheme"], device_scale_factor=1
            )
            page.goto(report.resolve().as_uri())
            page.evaluate("() => window.howsmooth.ready.then(() => null)")
            if "media" in view:
                page.emulate_media(media=view["media"])
                page.evaluate("() => window.howsmooth.ready.then(() => null)")
                page.pdf(path=folder / f"{name}.pdf")
            taken.append(folder / f"{name}.png")
            page.screenshot(path=taken[-1], full_page=True)
            page.close()
        browser.close()
    return taken


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("report", type=Path)
    parser.add_argument("folder", type=Path)
    for picture in take(**vars(parser.parse_args())):
        print(picture)
