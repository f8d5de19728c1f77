"""Sets of inputs."""

from howsmooth.domains.domain import Ball as Ball
from howsmooth.domains.domain import Domain as Domain
from howsmooth.domains.domain import Neighbourhood as Neighbourhood
from howsmooth.domains.domain import Sphere as Sphere
from howsmooth.domains.norm_image import Ellipsoid as Ellipsoid
from howsmooth.domains.norm_image import LayerNormImage as LayerNormImage

__all__: list[str]
