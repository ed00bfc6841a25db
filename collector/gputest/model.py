"""The transformer itself, in torch: random weights, one paged KV tensor a device, prefill and decode.

It owns every tensor of the worker, those it keeps on purpose too. Weights and pool are allocated
once; everything else lives for one step. Imported only where torch is installed.
"""

import torch
import torch.nn.functional as F

TABLE_STEP = 8  # decode tables are as wide as the longest request, rounded up to so many blocks
PREFILL_STEP = 64  # tokens: prompts are padded to its multiples, since each new shape costs the libraries host memory


class Part:
    """The layers, the KV pool and the rotary table that live on one device."""

    def __init__(self, device, layers, shape, blocks, block_size, dtype):
        self.device = device
        self.layers = []
        for _ in layers:
            self.layers.append({
                "norm1": torch.ones(shape.hidden, device=device, dtype=dtype),
                "qkv": weight(device, dtype, shape.hidden, (shape.heads + 2 * shape.kv_heads) * shape.head),
                "out": weight(device, dtype, shape.heads * shape.head, shape.hidden),
                "norm2": torch.ones(shape.hidden, device=device, dtype=dtype),
                "up": weight(device, dtype, shape.hidden, 2 * shape.ffn),
                "down": weight(device, dtype, shape.ffn, shape.hidden),
            })
        # One allocation for all layers: [layer, key or value, block, position in block, head, feature].
        self.kv = torch.zeros(len(layers), 2, blocks, block_size, shape.kv_heads, shape.head, device=device, dtype=dtype)
        angle = torch.outer(torch.arange(shape.max_model_len, dtype=torch.float32),
                            10000.0 ** (-torch.arange(0, shape.head, 2, dtype=torch.float32) / shape.head))
        self.cos = angle.cos().to(device=device, dtype=dtype)
        self.sin = angle.sin().to(device=device, dtype=dtype)


def weight(device, dtype, rows, columns):
    """A random matrix that keeps the size of what it is multiplied with."""
    return torch.empty(rows, columns, device=device, dtype=dtype).normal_(0.0, rows ** -0.5)


def norm(x, gain):
    """Root-mean-square norm, in float32 as servers do it."""
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * gain


def rotate(x, cos, sin):
    """Rotary positions: x is [tokens, heads, feature], cos and sin are [tokens, feature / 2]."""
    left, right = x.chunk(2, dim=-1)
    cos, sin = cos[:, None, :], sin[:, None, :]
    return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)


def attend(query, keys, values, mask):
    """Softmax attention: query [..., n, f], keys and values [..., t, f], mask [..., n, t] true where it may look."""
    scores = torch.matmul(query, keys.transpose(-1, -2)) * (query.shape[-1] ** -0.5)
    scores = scores.masked_fill(~mask, float("-inf"))
    return torch.matmul(torch.softmax(scores.float(), dim=-1).to(values.dtype), values)


class Model:
    """Executes the scheduler's steps. devices are torch devices; layers are split over them in order."""

    def __init__(self, shape, devices, blocks, block_size=16, dtype=torch.bfloat16, seed=1):
        torch.manual_seed(seed)
        self.shape = shape
        self.block_size = block_size
        self.dtype = dtype
        with torch.inference_mode():
            self.parts = [Part(device, layers, shape, blocks, block_size, dtype)
                          for device, layers in zip(devices, shape.split(len(devices)))]
            first, last = devices[0], devices[-1]
            self.embedding = torch.empty(shape.vocab, shape.hidden, device=first, dtype=dtype).normal_(0.0, 1.0)
            self.norm = torch.ones(shape.hidden, device=last, dtype=dtype)
            self.head = weight(last, dtype, shape.hidden, shape.vocab)
        self.kept = []  # tensors that nobody will free: the planted leak

    @property
    def kv_bytes(self):
        """Bytes of the KV pool over all devices."""
        return sum(part.kv.numel() * part.kv.element_size() for part in self.parts)

    @property
    def weight_bytes(self):
        """Bytes of all weights over all devices."""
        tensors = [self.embedding, self.norm, self.head]
        for part in self.parts:
            for layer in part.layers:
                tensors += layer.values()
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    @property
    def kept_bytes(self):
        """Bytes of the tensors that were kept on purpose."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.kept)

    @torch.inference_mode()
    def execute(self, step):
        """One token for each of step.requests(). Returns only when the devices have finished."""
        picked = [self._prefill(request.tokens, request.table) for request in step.prefills]
        if step.decodes:
            picked.append(self._decode([request.tokens for request in step.decodes],
                                       [request.table for request in step.decodes]))
        return torch.cat(picked).tolist()

    def warm_up(self, sequences, tokens):
        """Runs every shape that a step can have, the largest first: kernels are loaded, the libraries' choices are cached, and the
        allocator has seen its peak. What comes later needs no more host memory. It writes to block 0 only, before anybody uses it."""
        longest = self.shape.max_model_len
        with torch.inference_mode():
            for count in range(tokens, 0, -PREFILL_STEP):
                self._prefill([0] * count, [0] * -(-count // self.block_size))
            for width in range(longest, 0, -TABLE_STEP * self.block_size):
                table = [0] * -(-width // self.block_size)
                for batch in range(sequences, 0, -1):
                    picked = self._decode([[0] * width] * batch, [table] * batch)
            picked = picked.repeat(sequences)
            for prefills in range(sequences):  # how the tokens of a step are put together depends on how many of which there are
                for decodes in range(1, sequences - prefills + 1):
                    torch.cat([picked[:1].clone() for _ in range(prefills)] + [picked[:decodes].clone()])
            picked.tolist()

    def _prefill(self, tokens, table):
        shape, told = self.shape, len(tokens)
        slots = [table[at // self.block_size] * self.block_size + at % self.block_size for at in range(told)]
        count = min(-(-told // PREFILL_STEP) * PREFILL_STEP, shape.max_model_len)  # the padding comes last, where nothing looks back at it
        x = self.embedding[torch.tensor(tokens + [0] * (count - told), device=self.embedding.device)]
        for part in self.parts:
            x = x.to(part.device)
            at = torch.tensor(slots, device=part.device)
            cos, sin = part.cos[:count], part.sin[:count]
            for index, layer in enumerate(part.layers):
                query, key, value = self._project(x, layer, cos, sin)
                self._store(part, index, at, key[:told], value[:told])
                query, key, value = (t.transpose(0, 1)[None] for t in (query, key, value))  # [1, heads, tokens, feature]
                groups = shape.heads // shape.kv_heads
                key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
                if hasattr(F, "scaled_dot_product_attention"):
                    mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
                else:
                    look = torch.ones(count, count, dtype=torch.bool, device=part.device).tril()
                    mixed = attend(query, key, value, look)
                x = self._finish(x, mixed[0].transpose(0, 1).reshape(count, -1), layer)
        return self._pick(x[told - 1:told])

    def _decode(self, sequences, tables):
        shape, count, size = self.shape, len(sequences), self.block_size
        width = max(-(-len(tokens) // size) for tokens in sequences)
        width = -(-width // TABLE_STEP) * TABLE_STEP
        rows = [list(table[:width]) + [0] * (width - len(table)) for table in tables]
        positions = [len(tokens) - 1 for tokens in sequences]
        slots = [table[at // size] * size + at % size for at, table in zip(positions, tables)]
        x = self.embedding[torch.tensor([tokens[-1] for tokens in sequences], device=self.embedding.device)]
        groups = shape.heads // shape.kv_heads
        for part in self.parts:
            x = x.to(part.device)
            gather = torch.tensor(rows, device=part.device)
            at = torch.tensor(slots, device=part.device)
            where = torch.tensor(positions, device=part.device)
            cos, sin = part.cos[where], part.sin[where]
            look = (torch.arange(width * size, device=part.device)[None, :] <= where[:, None])[:, None, None, :]
            for index, layer in enumerate(part.layers):
                query, key, value = self._project(x, layer, cos, sin)
                self._store(part, index, at, key, value)
                pages = part.kv[index][:, gather]  # [key or value, sequence, block, position, head, feature]
                pages = pages.reshape(2, count, width * size, shape.kv_heads, shape.head).transpose(2, 3)
                mixed = attend(query.reshape(count, shape.kv_heads, groups, shape.head), pages[0], pages[1], look)
                x = self._finish(x, mixed.reshape(count, -1), layer)
        return self._pick(x)

    def _project(self, x, layer, cos, sin):
        shape = self.shape
        both = torch.matmul(norm(x, layer["norm1"]), layer["qkv"]).view(x.shape[0], -1, shape.head)
        query, key, value = both.split((shape.heads, shape.kv_heads, shape.kv_heads), dim=1)
        return rotate(query, cos, sin), rotate(key, cos, sin), value

    def _store(self, part, index, slots, key, value):
        pool = part.kv[index].view(2, -1, self.shape.kv_heads, self.shape.head)
        pool[0].index_copy_(0, slots, key)
        pool[1].index_copy_(0, slots, value.contiguous())

    def _finish(self, x, mixed, layer):
        x = x + torch.matmul(mixed, layer["out"])
        gate, up = torch.matmul(norm(x, layer["norm2"]), layer["up"]).chunk(2, dim=-1)
        return x + torch.matmul(F.silu(gate) * up, layer["down"])

    def _pick(self, x):
        return torch.matmul(norm(x, self.norm), self.head).argmax(dim=-1)

    def keep(self, size):
        """Keeps a tensor of so many bytes on the last device, as a list of logits of requests that are gone would."""
        self.kept.append(torch.empty(max(1, size // 4), device=self.parts[-1].device, dtype=torch.float32).fill_(1.0))

    def ask(self, size):
        """Asks the first device for so many bytes at once and gives them back. Raises what torch raises where they are not there."""
        torch.empty(size, device=self.parts[0].device, dtype=torch.uint8).fill_(0)

    @torch.inference_mode()
    def oversize(self, tokens):
        """Computes a prompt that nobody refused for its length: the first layer's feed-forward activations of so many tokens at once."""
        x = torch.empty(tokens, self.shape.hidden, device=self.parts[0].device, dtype=self.dtype)
        return torch.matmul(x, self.parts[0].layers[0]["up"]).shape

    def oversize_tokens(self, size):
        """How many tokens need more than so many bytes for those activations."""
        return size // (2 * self.shape.ffn * self.parts[0].kv.element_size()) + 1

    def is_oom(self, error):
        """Whether an exception says that memory ran out."""
        kinds = tuple(kind for kind in (getattr(torch, "OutOfMemoryError", None), getattr(torch.cuda, "OutOfMemoryError", None),
                                        MemoryError) if isinstance(kind, type))
        return isinstance(error, kinds) or (isinstance(error, RuntimeError) and "out of memory" in str(error))


def devices_for(kind, count):
    """The torch devices to run on. Raises ValueError with a remedy where they are not there."""
    if kind == "cpu":
        return [torch.device("cpu")] * count
    if not torch.cuda.is_available():
        raise ValueError("use device cuda: torch sees no GPU; run with --device cpu and small sizes")
    if torch.cuda.device_count() < count:
        raise ValueError("use %d GPUs: torch sees %d; lower --devices or widen CUDA_VISIBLE_DEVICES" % (count, torch.cuda.device_count()))
    return [torch.device("cuda", index) for index in range(count)]


def cap(devices, fraction):
    """Caps what torch's allocator may take of each GPU, as a share of the card, 0..1."""
    for device in devices:
        torch.cuda.set_per_process_memory_fraction(fraction, device)


def device_bytes(device):
    """A GPU's memory in bytes."""
    return torch.cuda.get_device_properties(device).total_memory
