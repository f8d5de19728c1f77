"""Take pictures of the lab: ``python tests/browser/lab_stills.py lab.html FOLDER``."""

import argparse
import shutil
from pathlib import Path

SCENES = ("crowd", "tied-pair", "mean-field", "splitting", "infinity", "minilm", "layer-norm")
VIEWS = {"light": ("light", 1280, 900), "dark": ("dark", 1280, 900), "phone": ("light", 390, 844)}


def take(lab: Path, folder: Path, views: tuple[str, ...] = tuple(VIEWS)) -> list[Path]:
    """Write one picture of every scene in every view."""
    from playwright.sync_api import sync_playwright

    folder.mkdir(parents=True, exist_ok=True)
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    taken = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for view in views:
            scheme, width, height = VIEWS[view]
            page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
            page.on("console", lambda said: print("console:", said.text))
            page.on("pageerror", lambda error: print("error:", error))
            for scene in SCENES:
                page.goto(f"{lab.resolve().as_uri()}#scene={scene}")
                page.evaluate("() => window.lab.ready.then(() => null)")
                page.wait_for_timeout(400)
                taken.append(folder / f"{scene}-{view}.png")
                page.screenshot(path=taken[-1], full_page=True)
            page.close()
        browser.close()
    return taken


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("lab", type=Path)
    parser.add_argument("folder", type=Path)
    for picture in take(**vars(parser.parse_args())):
        print(picture)
