"""What nothing but the program may import: it takes seconds in the real one."""

import torch

torch.touched.append("torch._inductor")
torch._report()
