"""Take pictures of the lab: ``python tests/browser/lab_stills.py lab.html FOLDER``, or a strip: ``… lab.png``."""

import argparse
import base64
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SCENES = ("why", "infinity", "tied-pair", "crowd", "mean-field", "splitting", "minilm", "layer-norm")
VIEWS = {"light": ("light", 1280, 900), "dark": ("dark", 1280, 900), "phone": ("light", 390, 844)}
# What the strip shows: a title, a link, what is pressed there.
STRIP = (
    ("The tied pair: R²", "#scene=tied-pair", ()),
    ("A light dot leads all: exponential", "#scene=mean-field&R=2&tokens=1;8065&eps=0.05", ()),
    ("A dot cut in two", "#scene=splitting&eps=0.1", ("#cut",)),
    ("A head of MiniLM at its worst", "#scene=minilm&eps=0.015", ("#go-known",)),
)

SHEET = """
body { margin: 12px; display: grid; grid-template-columns: repeat(4, 1fr); gap: 14px; color: #1c1e21; }
body { font: 16px "DejaVu Sans", sans-serif; }
figure { margin: 0; } img { width: 100%; } b { display: block; font-size: 30px; color: #0072b2; }
"""


@contextmanager
def chromium() -> "Iterator[Browser]":
    """Open a browser."""
    from playwright.sync_api import sync_playwright

    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


def visit(page: "Page", lab: Path, link: str) -> None:
    """Go to a link and wait until all is drawn, the best known input too."""
    page.goto(f"{lab.resolve().as_uri()}{link}")
    page.evaluate("() => window.lab.ready.then(() => null)")
    page.wait_for_function("() => document.getElementById('value-known').textContent !== '—'")
    page.wait_for_timeout(300)


def take(lab: Path, folder: Path) -> list[Path]:
    """Write one picture of every scene in every view."""
    folder.mkdir(parents=True, exist_ok=True)
    taken = []
    with chromium() as browser:
        for view, (scheme, width, height) in VIEWS.items():
            page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
            for scene in SCENES:
                visit(page, lab, f"#scene={scene}")
                taken.append(folder / f"{scene}-{view}.png")
                page.screenshot(path=taken[-1], full_page=True)
            page.close()
    return taken


def strip(lab: Path, target: Path) -> list[Path]:
    """Write four stages side by side, each with its constant."""
    cells = []
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 1000, "height": 900}, color_scheme="light")
        for title, link, pressed in STRIP:
            visit(page, lab, link)
            for button in pressed:
                page.click(button)
                page.wait_for_timeout(300)
            still = base64.b64encode(page.locator("#stage").screenshot()).decode()
            number = page.locator("#constant").inner_text()
            caption = f"<figcaption>{title}<b>×{number}</b></figcaption>"
            cells.append(f'<figure>{caption}<img src="data:image/png;base64,{still}"></figure>')
        sheet = browser.new_page(viewport={"width": 1320, "height": 400})
        sheet.set_content(f"<style>{SHEET}</style>{''.join(cells)}")
        sheet.screenshot(path=target, full_page=True)
    return [target]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("lab", type=Path)
    parser.add_argument("target", type=Path)
    wanted = parser.parse_args()
    for picture in (strip if wanted.target.suffix == ".png" else take)(wanted.lab, wanted.target):
        print(picture)
