"""What the published SGLang wheel lacks on the CPU: operators in PyTorch, one attention backend, and a fault switch."""
