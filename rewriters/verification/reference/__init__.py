"""Stand-ins for torch_npu and MindSpeed: real schemas in front of reference kernels on CPU."""
