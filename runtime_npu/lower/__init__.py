"""Lowering a step to a graph of the hardware, and reading back what that would be told.

The model is traced on tensors without data; its weights and inputs are inputs of the traced
graph, which torchair's own backend compiles.  Only its last step, CANN's compiler, is left out.
"""
