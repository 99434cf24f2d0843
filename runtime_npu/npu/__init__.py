"""The fused ops of torch_npu, each behind a contract of shapes and dtypes of our own.

The contracts are checked before the op is called, because neither torch_npu's shape functions
nor its host code notice everything (a grouped matmul whose inner sizes differ passes both).
"""
