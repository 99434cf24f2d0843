"""Ranks on NPUs: fused ops of torch_npu behind contracts of our own, and passes that run on a die.

The contracts are checked before an op is called, because neither torch_npu's shape functions
nor its host code notice everything (a grouped matmul whose inner sizes differ passes both).
"""
