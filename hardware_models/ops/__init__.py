"""Demand models, one family of ops a module; every formula's docstring names its source."""

from hardware_models.ops.attention import (
    AttentionUpdate,
    GqaAttention,
    MlaDecodeAttention,
    MlaProlog,
)
from hardware_models.ops.collective import (
    BulkExchange,
    Collective,
    Combine,
    Dispatch,
    HcclCollective,
)
from hardware_models.ops.host import HostLaunch, HostRead
from hardware_models.ops.matmul import BatchMatMul, GroupedMatMul, MatMul, QuantMatMul
from hardware_models.ops.routing import InitRouting
from hardware_models.ops.transfer import PrefetchWeight, Receive, Send
from hardware_models.ops.vector import (
    Embedding,
    GatingTopK,
    RowOp,
    Sample,
)
from hardware_models.ops.vector_transfer import (
    ExpertReceive,
    ExpertSend,
    ExpertWait,
    VectorReceive,
    VectorSend,
)

__all__ = [
    "AttentionUpdate",
    "BatchMatMul",
    "BulkExchange",
    "Collective",
    "Combine",
    "Dispatch",
    "Embedding",
    "ExpertReceive",
    "ExpertSend",
    "ExpertWait",
    "GatingTopK",
    "GqaAttention",
    "GroupedMatMul",
    "HcclCollective",
    "HostLaunch",
    "HostRead",
    "InitRouting",
    "MatMul",
    "MlaDecodeAttention",
    "MlaProlog",
    "PrefetchWeight",
    "QuantMatMul",
    "Receive",
    "RowOp",
    "Sample",
    "Send",
    "VectorReceive",
    "VectorSend",
]
