"""Penalties and monitors for training."""

from howsmooth.studies.kinds.monitor import RunLog as RunLog
from howsmooth.training import callbacks as callbacks
from howsmooth.training.head_probe import Probe as Probe
from howsmooth.training.head_probe import probe as probe
from howsmooth.training.monitor import Monitor as Monitor
from howsmooth.training.penalties import AttentionPenalty as AttentionPenalty
from howsmooth.training.penalties import WarmStart as WarmStart
from howsmooth.training.penalties import attention_penalty as attention_penalty
from howsmooth.training.penalties import penalty as penalty
from howsmooth.training.readings import Alarm as Alarm
from howsmooth.training.readings import HeadAlarm as HeadAlarm
from howsmooth.training.readings import HeadReading as HeadReading
from howsmooth.training.readings import JsonLines as JsonLines
from howsmooth.training.readings import LayerReading as LayerReading
from howsmooth.training.readings import Look as Look
from howsmooth.training.readings import TensorBoard as TensorBoard

__all__: list[str]
