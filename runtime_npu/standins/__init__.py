"""Stand-ins for the CANN libraries, so that the real torch_npu loads where there is no NPU.

They compute nothing.  What runs on them shows what the hardware would be told: which ops, in
which order, on which streams, under which limits.  Everything here happens in processes of
its own; importing torch stays what it is.
"""
