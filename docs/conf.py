"""The documentation site: `make docs`."""

import importlib.util
import os
import socket
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))
# Matrices of the gallery are small: a second thread slows them down where others use the cores. Before torch is loaded.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import howsmooth  # noqa: E402

project = "howsmooth"
author = "the howsmooth authors"
version = release = howsmooth.__version__
language = "en"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
    "sphinxcontrib.bibtex",
    "atlas",
    "commands",
    "front_door",
    "lab",
    "names",
    "notebooks",
    "prose_numbers",
]
# examples/ holds files that pages offer for download; gallery/ is read by sphinx-gallery, which writes pictures/.
exclude_patterns = ["_build", "_ext", "examples", "figures", "gallery", "**.ipynb", "pictures/*.py"]

myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
bibtex_bibfiles = ["references.bib"]

# One file with everything in it, so that pages show their formulas from a disk as well.
mathjax_package = importlib.util.find_spec("sphinx-mathjax-offline")
mathjax_file = Path(mathjax_package.origin).parent / "static" / "mathjax" / "tex-svg.js"
mathjax_path = mathjax_file.name
mathjax3_config = {"svg": {"scale": 0.92}, "options": {"enableMenu": False}}

html_theme = "furo"
html_title = "howsmooth"
html_static_path = ["_static", str(mathjax_file)]
html_css_files = ["house.css"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_show_sourcelink = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0072b2", "color-brand-content": "#0072b2"},
    "dark_css_variables": {"color-brand-primary": "#56b4e9", "color-brand-content": "#56b4e9"},
}

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
autosummary_generate = False
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_attr_annotations = False  # shapes are in the signature

sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "pictures",
    "filename_pattern": r"\.py$",
    "image_scrapers": ("pictures.draw_altair",),
    "run_stale_examples": True,  # pictures follow the library, not only their scripts
    "reset_modules": ("pictures.tidy",),
    "reset_modules_order": "after",
    "capture_repr": (),
    "within_subsection_order": "pictures.Order",
    "download_all_examples": False,
    "min_reported_time": 10**6,
    "write_computation_times": False,
    "show_memory": False,
    "show_signature": False,
    "abort_on_example_error": True,
    "notebook_extensions": (),
    "remove_config_comments": True,
}

# Names of other libraries lead to their pages if there is a network when the site is built.
LIBRARIES = {
    "python": "https://docs.python.org/3",
    "numpy": "https://numpy.org/doc/stable",
    "torch": "https://docs.pytorch.org/docs/stable",
}


def online() -> bool:
    """Tell whether a page elsewhere can be reached."""
    try:
        socket.create_connection(("docs.python.org", 443), timeout=2).close()
    except OSError:
        return False
    return True


intersphinx_mapping = {name: (url, None) for name, url in LIBRARIES.items()} if online() else {}
copybutton_exclude = ".linenos, .gp, .go, .c1"  # prompts, output and remarks stay on the page

nitpick_ignore_regex = [
    # torch, numpy, altair and jaxtyping: linked only where there is a network
    (r"py:.*", r"(torch|numpy|np|altair|alt|jaxtyping|msgspec|rich|transformers|tokenizers)\..*"),
    (r"py:.*", r"(Tensor|nn\.Module|Bool|Float|Int|Shaped)(\[.*)?"),
    # what rooms keep to themselves: shown by name, not documented
    (r"py:.*", r"howsmooth\.(budgets|certificates|domains|maps|models|search|studies|training)\.\w+\.[\w.]+"),
    (r"py:mod", r"howsmooth\.\w+\.\w+"),
    (r"py:class", r"howsmooth\.tensor_dataclass\.V|howsmooth\.token_ring\.TokenRing|Progress"),
    # settings say in their annotations what the command line says about them
    (r"py:class", r"types\.Annotated\[.*"),
    # the standard library, likewise
    (r"py:.*", r"(collections|typing|os|pathlib|enum|dataclasses|functools)\..*"),
]
