"""Pictures in a folder: read by Pillow, preprocessed by the image processor of a model."""

import hashlib
import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from howsmooth.errors import AssumptionError, FileError
from howsmooth.files import require_room, require_size

if TYPE_CHECKING:
    from torch import Tensor

FIELD = "images"
ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff")
# Pillow may try these formats only, whatever the ending: for others, such as PostScript, it calls other programs.
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF")
# The largest file, in bytes.
LARGEST_PICTURE = 2**30
# Bytes of memory for each pixel: its colours as they are stored, and as numbers.
BYTES_PER_PIXEL = 16
# Without an image processor, pixels are normalised as for most ViTs: from 0 … 1 to −1 … 1.
MEAN, DEVIATION = 0.5, 0.5
NOTE = "the model comes without an image processor: pictures were resized to its size, and brought to −1 … 1"


@dataclass(frozen=True, kw_only=True, repr=False)
class Pictures:
    """Pictures and the folder that they come from.

    Attributes:
        name: The folder.
        files: The names of the pictures in it, in alphabetical order.
        digest: A hash of their contents.
    """

    name: str
    files: tuple[str, ...]
    digest: str

    def __repr__(self) -> str:
        """Return the folder and the number of pictures."""
        return f"Pictures({self.name!r}, {len(self.files)} pictures)"

    def open(self, index: int) -> Any:
        """Return one picture in red, green and blue."""
        from PIL import Image, UnidentifiedImageError

        file = os.path.join(self.name, self.files[index])
        try:
            with Image.open(file, formats=FORMATS) as picture:
                size = f"{picture.width} × {picture.height}"
                require_room(
                    BYTES_PER_PIXEL * picture.width * picture.height,
                    f"the picture {file!r} of {size} pixels",
                    field=FIELD,
                )
                return picture.convert("RGB")
        except FileError:
            raise
        except (OSError, SyntaxError, ValueError, UnidentifiedImageError, Image.DecompressionBombError) as error:
            raise FileError(f"the picture {file!r} cannot be read: {error}.", field=FIELD) from error


def read_pictures(path: str | os.PathLike[str]) -> Pictures:
    """List the pictures in a folder; none of them is opened yet."""
    folder = Path(path)
    if not folder.is_dir():
        missing = "a file" if folder.exists() else "not there"
        raise FileError(f"images must be a folder of pictures, but {str(path)!r} is {missing}.", field=FIELD)
    if importlib.util.find_spec("PIL") is None:
        raise FileError("pictures are read by Pillow, which is not installed; run: pip install pillow", field=FIELD)
    files = sorted(file.name for file in folder.iterdir() if file.suffix.lower() in ENDINGS and file.is_file())
    if not files:
        raise FileError(f"there is no picture ({', '.join(ENDINGS)}) in {str(path)!r}.", field=FIELD)
    found = hashlib.sha256()
    for file in files:
        require_size(folder / file, "a picture", field=FIELD, copies=1, most=LARGEST_PICTURE)
        found.update(hashlib.sha256((folder / file).read_bytes()).digest())
    return Pictures(name=os.fspath(path), files=tuple(files), digest=found.hexdigest()[:16])


def pixels(picture: Any, processor: Any | None, *, size: tuple[int, int]) -> "Tensor":
    """Return a picture as input of a model, (channels, height, width).

    Args:
        picture: What :meth:`Pictures.open` returned.
        processor: An image processor of the transformers library; without one, pictures are resized and brought to
            −1 … 1.
        size: The height and width of the inputs of the model.
    """
    import numpy as np
    import torch

    height, width = size
    if processor is not None:
        found = processor(images=picture, return_tensors="pt")["pixel_values"][0]
        if tuple(found.shape[-2:]) != size:
            raise AssumptionError(
                f"the model is made for pictures of {height} × {width} pixels, but the image processor beside it makes "
                f"{found.shape[-2]} × {found.shape[-1]}; is it of another model?",
                field=FIELD,
            )
        return found
    values = torch.from_numpy(np.array(picture.resize((width, height)), dtype=np.float32) / 255)
    return ((values - MEAN) / DEVIATION).movedim(-1, 0)
