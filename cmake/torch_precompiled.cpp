// Exists to own the precompiled <torch/torch.h>.
