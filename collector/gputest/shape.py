"""The transformer's sizes, worked out without torch: parameters, bytes of weights, bytes of one KV block."""


class Shape:
    """A decoder with grouped-query attention, rotary positions, SwiGLU and an output head of its own."""

    def __init__(self, layers=16, hidden=2048, heads=16, kv_heads=4, ffn=8192, vocab=32000, max_model_len=2048):
        for name, value in (("layers", layers), ("hidden", hidden), ("heads", heads), ("kv-heads", kv_heads), ("ffn", ffn),
                            ("vocab", vocab), ("max-model-len", max_model_len)):
            if value < 1:
                raise ValueError("make shape: %s is %d and must be at least 1" % (name, value))
        if hidden % heads or heads % kv_heads or (hidden // heads) % 2:
            raise ValueError("make shape: heads must divide hidden into an even size, and kv-heads must divide heads")
        self.layers = layers
        self.hidden = hidden
        self.heads = heads
        self.kv_heads = kv_heads
        self.head = hidden // heads
        self.ffn = ffn
        self.vocab = vocab
        self.max_model_len = max_model_len

    @property
    def layer_parameters(self):
        """Parameters of one layer: q, k, v and output projections, three of the feed-forward part, two norms."""
        attention = self.hidden * self.head * (2 * self.heads + 2 * self.kv_heads)
        return attention + 3 * self.hidden * self.ffn + 2 * self.hidden

    @property
    def parameters(self):
        """Parameters of the whole model, embedding, final norm and head included."""
        return self.layers * self.layer_parameters + 2 * self.vocab * self.hidden + self.hidden

    def kv_block_bytes(self, block_size, item_bytes):
        """Bytes of one KV block over all layers, keys and values."""
        return self.layers * 2 * block_size * self.kv_heads * self.head * item_bytes

    def split(self, parts):
        """Which layers each device holds, as ranges of consecutive layers, the earlier ones not smaller."""
        if not 1 <= parts <= self.layers:
            raise ValueError("split layers: %d layers cannot be split over %d devices" % (self.layers, parts))
        edges = [-(-self.layers * part // parts) for part in range(parts + 1)]
        return [range(edges[part], edges[part + 1]) for part in range(parts)]
