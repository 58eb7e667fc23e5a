"""A small language model around the layers under test."""

from torch import nn
from torch.nn import functional as F


class DecoderOf(nn.Module):
    """Returns the loss of predicting each token from itself."""

    def __init__(self, layers, width, words):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.layers = nn.ModuleList(layers)
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, ids):
        x = self.words(ids)
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1).float(), ids.flatten())
