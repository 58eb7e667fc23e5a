"""The losses of the Python originals of the tiny models, for the table in tests/models/reference_test.cpp.

    PYTHONPATH=<torchvision> .venv/bin/python models/reference_losses.py

Needs torchvision and transformers; neither the build nor the tests do. Parameters and inputs are filled by formula, the
same as in the test, so no weights are exchanged: that the losses agree shows that structure, parameter order and shapes
are the same. The U-Net and the LSTM have no package; they are written here after their repositories.
"""
import torch
import torch.nn.functional as F
from torch import nn

VOCAB, CLASSES = 101, 10


def noise(shape, seed):
    """Uniform in [-1, 1) and the same in every language: the digits of a sine far behind the point."""
    k = torch.arange(torch.Size(shape).numel(), dtype=torch.float64)
    return (2 * torch.frac((torch.sin(k * 12.9898 + seed) + 1) * 43758.5453) - 1).reshape(shape).float()


def ids(shape, bound):
    return ((torch.arange(torch.Size(shape).numel()) * 7 + 3) % bound).reshape(shape)


def fill(module):
    with torch.no_grad():
        for i, parameter in enumerate(module.parameters()):
            parameter.copy_(0.6 * noise(parameter.shape, i + 1))
    return module


def report(name, module, loss):
    loss.backward()
    gradients = [p.grad.flatten() for p in module.parameters()]
    first, total = gradients[0].norm().item(), torch.cat(gradients).norm().item()
    print(f'{{"{name}", {loss.item():.6g}, {first:.6g}, {total:.6g}}},')


def resnet(name, block):
    from torchvision.models.resnet import ResNet

    class Narrow(ResNet):  # the width of the first stage is no option there
        def _make_layer(self, block, planes, *args, **kwargs):
            self.inplanes = 8 if planes == 64 else self.inplanes
            return super()._make_layer(block, planes // 8, *args, **kwargs)

    model = Narrow(block, [2, 1, 1, 1], num_classes=CLASSES)
    model.conv1, model.bn1 = nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8)
    model.fc = nn.Linear(64 * block.expansion, CLASSES)
    image(name, fill(model), 64, ids([2], CLASSES))


def image(name, model, size, labels):
    report(name, model, F.cross_entropy(model(noise([2, 3, size, size], 0)), labels))


class DoubleConv(nn.Module):
    def __init__(self, c_in, c_out, c_mid=None):
        super().__init__()
        c_mid = c_mid or c_out
        self.double_conv = nn.Sequential(
            nn.Conv2d(c_in, c_mid, 3, padding=1, bias=False), nn.BatchNorm2d(c_mid), nn.ReLU(inplace=True),
            nn.Conv2d(c_mid, c_out, 3, padding=1, bias=False), nn.BatchNorm2d(c_out), nn.ReLU(inplace=True))

    def forward(self, x):
        return self.double_conv(x)


class Unet(nn.Module):
    def __init__(self, w, bilinear):
        super().__init__()
        d = 2 if bilinear else 1
        self.inc = DoubleConv(3, w)
        self.down = nn.ModuleList(DoubleConv(w * 2**i, w * 2 ** (i + 1) // (d if i == 3 else 1)) for i in range(4))
        self.up = nn.ModuleList()
        for i in (3, 2, 1, 0):
            c_in, c_out = w * 2 ** (i + 1), w * 2**i // (d if i else 1)
            up = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True) if bilinear \
                else nn.ConvTranspose2d(c_in, c_in // 2, 2, stride=2)
            self.up.append(nn.Sequential(up, DoubleConv(c_in, c_out, c_in // 2 if bilinear else None)))
        self.outc = nn.Conv2d(w, 2, 1)

    def forward(self, x):
        skips = [self.inc(x)]
        for down in self.down:
            skips.append(down(F.max_pool2d(skips[-1], 2)))
        x = skips.pop()
        for up, conv in self.up:
            skip = skips.pop()
            x = up(x)
            rows, columns = skip.shape[2] - x.shape[2], skip.shape[3] - x.shape[3]
            x = F.pad(x, [columns // 2, columns - columns // 2, rows // 2, rows - rows // 2])
            x = conv(torch.cat([skip, x], 1))
        return self.outc(x)


class LstmLanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Embedding(VOCAB, 16)
        self.rnn = nn.LSTM(16, 24, 2)
        self.decoder = nn.Linear(24, VOCAB)

    def forward(self, tokens, state):
        return F.log_softmax(self.decoder(self.rnn(self.encoder(tokens), state)[0]).view(-1, VOCAB), 1)


def language_model(name, model):
    tokens = ids([2, 16], VOCAB)
    report(name, model, fill(model)(input_ids=tokens, labels=tokens).loss)


def main():
    from torchvision.models import VisionTransformer
    from torchvision.models.resnet import BasicBlock, Bottleneck
    from transformers import BertConfig, BertModel, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    resnet("resnet18", BasicBlock)
    resnet("resnet50", Bottleneck)
    image("vit_b_16", fill(VisionTransformer(32, 8, 2, 2, 32, 64, num_classes=CLASSES)), 32, ids([2], CLASSES))

    bert = fill(BertModel(BertConfig(
        vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=32, hidden_dropout_prob=0, attention_probs_dropout_prob=0)).train())
    report("bert_base", bert, F.cross_entropy(bert(input_ids=ids([2, 16], VOCAB)).pooler_output, ids([2], 32)))

    language_model("gpt2", GPT2LMHeadModel(GPT2Config(
        vocab_size=VOCAB, n_positions=32, n_embd=32, n_layer=2, n_head=2, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
        bos_token_id=0, eos_token_id=0)).train())
    language_model("llama3_8b", LlamaForCausalLM(LlamaConfig(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0})).train())

    for bilinear in (False, True):
        image("unet_bilinear" if bilinear else "unet", fill(Unet(4, bilinear)), 37 if bilinear else 32,
              ids([2, 37, 37] if bilinear else [2, 32, 32], 2))

    lstm = fill(LstmLanguageModel())
    state = torch.zeros(2, 2, 24)
    report("lstm_lm", lstm, F.nll_loss(lstm(ids([16, 2], VOCAB), (state, state)), ids([32], VOCAB)))


main()
