"""Demand models, one family of ops a module; every formula's docstring names its source.

Times are in us, rates in GB/s (1e9 bytes a second), sizes in bytes, shapes in elements.

==============================================  ===============================================
op kind                                         class
==============================================  ===============================================
MatMul (weights ND and NZ), lm_head             MatMul (``layout``)
QuantBatchMatmul                                QuantMatMul (``epilogue``)
GroupedMatmul; with SwiGLU and quantisation     GroupedMatMul; GroupedMatMulSwigluQuant
TransposeBatchMatMul                            BatchMatMul
MLAProlog v3                                    MlaProlog
MLA decode, absorbed and paged, with MTP rows   MlaDecodeAttention
prefill attention, causal; GQA                  GqaAttention
AttentionUpdate                                 AttentionUpdate
RmsNorm, AddRmsNorm, AddRmsNorm and quant       RowOp (rms_norm, add_rms_norm, add_rms_norm_quant)
DynamicQuant, static quant                      RowOp (dynamic_quant, static_quant)
SwiGLU, DequantSwigluQuant                      RowOp (swiglu, dequant_swiglu_quant)
KvRmsNormRopeCache, RoPE                        RowOp (kv_norm_rope, rope)
MoeGatingTopK                                   GatingTopK
InitRouting                                     InitRouting
ReRouting, FinalizeRouting                      RowOp (re_routing, finalize_routing)
Dispatch, Combine v2 (copy experts stay)        Dispatch, Combine; of a prefill batch BulkExchange
AllGather, ReduceScatter, AllReduce, AllToAll   Collective; as HCCL runs them HcclCollective
Send, Receive; on vector cores (camp2p)         Send, Receive; VectorSend, VectorReceive
AFD, direct to the experts                      ExpertSend, ExpertWait, ExpertReceive, FillChoices
embedding; sampling                             Embedding; Sample, with RowOp (softmax, sort)
elementwise: add and activations                RowOp (add, activation, exp, cast)
elementwise: copies and choices                 RowOp (move, select, gather, transpose)
weights: to L2, into NZ                         PrefetchWeight; RowOp (weight_relayout)
the host                                        HostLaunch, HostRead
==============================================  ===============================================
"""

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
from hardware_models.ops.matmul import (
    BatchMatMul,
    GroupedMatMul,
    GroupedMatMulSwigluQuant,
    MatMul,
    QuantMatMul,
)
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
    FillChoices,
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
    "FillChoices",
    "GatingTopK",
    "GqaAttention",
    "GroupedMatMul",
    "GroupedMatMulSwigluQuant",
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
