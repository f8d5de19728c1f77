"""Attention mechanisms, the other parts of a transformer, and their compositions."""

from howsmooth.maps.affine import Affine as Affine
from howsmooth.maps.affine import Pooling as Pooling
from howsmooth.maps.attention import Attention as Attention
from howsmooth.maps.composition import Chain as Chain
from howsmooth.maps.composition import Residual as Residual
from howsmooth.maps.composition import Sum as Sum
from howsmooth.maps.mean_field_maps import mean_field as mean_field
from howsmooth.maps.mechanisms.counting import EntmaxAttention as EntmaxAttention
from howsmooth.maps.mechanisms.counting import SigmoidAttention as SigmoidAttention
from howsmooth.maps.mechanisms.linear import LinearAttention as LinearAttention
from howsmooth.maps.mechanisms.sinkhorn import SinkhornAttention as SinkhornAttention
from howsmooth.maps.mechanisms.softmax_scores import CosineAttention as CosineAttention
from howsmooth.maps.mechanisms.softmax_scores import DifferentialAttention as DifferentialAttention
from howsmooth.maps.mechanisms.softmax_scores import L2Attention as L2Attention
from howsmooth.maps.mlp import MLP as MLP
from howsmooth.maps.mlp import Dense as Dense
from howsmooth.maps.mlp import GatedMLP as GatedMLP
from howsmooth.maps.norms import LayerNorm as LayerNorm
from howsmooth.maps.norms import RMSNorm as RMSNorm
from howsmooth.maps.positions import Positions as Positions
from howsmooth.maps.positions import Rotary as Rotary

__all__: list[str]
