"""Sets of inputs."""

from howsmooth.domains.ball import Ball as Ball
from howsmooth.domains.domain import Domain as Domain
from howsmooth.domains.ellipsoid import Ellipsoid as Ellipsoid
from howsmooth.domains.neighbourhood import Neighbourhood as Neighbourhood
from howsmooth.domains.norm_image import LayerNormImage as LayerNormImage
from howsmooth.domains.sphere import Sphere as Sphere

__all__: list[str]
