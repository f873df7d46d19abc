# SPDX-License-Identifier: Apache-2.0
"""Trainings on the CPU, each without and with served steps: prints as JSON whether their losses are equal, bit for bit, and
what was served. Freed memory of the slab is poisoned. One case a process: step_programs.py CASE [PLAN]
"""

import argparse
import gc
import json
import threading
import warnings

import torch
from torch import nn

warnings.filterwarnings("ignore")
torch.set_num_threads(1)
WORDS, BATCH, LENGTH = 257, 2, 24


def llama(**changes):
    from transformers import LlamaConfig, LlamaForCausalLM
    sizes = dict(vocab_size=WORDS, hidden_size=64, intermediate_size=160, num_hidden_layers=3, num_attention_heads=4,
                 num_key_value_heads=2, max_position_embeddings=256)
    return LlamaForCausalLM(LlamaConfig(**{**sizes, **changes}))


def tokens(generator, length=LENGTH):
    return torch.randint(0, WORDS, (BATCH, length), generator=generator)


class Plain:
    """A Llama with AdamW. Each case replaces a part."""

    steps, record = 16, 3

    def __init__(self):
        torch.manual_seed(0)
        self.generator = torch.Generator().manual_seed(1)
        self.losses = []
        self.build()

    def build(self):
        self.model = llama()
        self.optimizers = [torch.optim.AdamW(self.model.parameters(), lr=1e-3)]

    def loss(self, ids, model=None):
        loss = (model or self.model)(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        return loss.detach()

    def update(self):
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()

    def step(self, number):
        self.losses.append(float(self.loss(tokens(self.generator))))
        self.update()

    def run(self, each=lambda number: None):
        for number in range(self.steps):
            self.step(number)
            each(number)
        return self.losses


class Accumulate(Plain):
    def step(self, number):
        self.losses += [float(self.loss(tokens(self.generator)) / 4) for _ in range(4)]
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.update()


class Lengths(Plain):
    """Batches of three lengths in random order."""

    steps, record = 24, 10

    def step(self, number):
        length = (16, 24, 40)[int(torch.randint(0, 3, (), generator=self.generator))]
        self.losses.append(float(self.loss(tokens(self.generator, length))))
        self.update()


class Evaluate(Plain):
    """An evaluation after every second step."""

    def step(self, number):
        super().step(number)
        if number % 2:
            self.model.eval()
            with torch.no_grad():
                ids = tokens(self.generator, 2 * LENGTH)
                self.losses.append(float(self.model(input_ids=ids, labels=ids).loss))
            self.model.train()


class Exceptions(Plain):
    """A step that fails in the last layer, and is repeated."""

    def step(self, number):
        if number % 4 == 1:
            def fail(module, arguments):
                raise RuntimeError("in the middle")

            hook = self.model.model.layers[-1].register_forward_pre_hook(fail)
            try:
                self.loss(tokens(self.generator))
            except RuntimeError:
                self.losses.append(-1.0)
            hook.remove()
        super().step(number)


class Kept(Plain):
    """From the fifth step on, logits live for two steps more."""

    def build(self):
        super().build()
        self.kept = []

    def step(self, number):
        ids = tokens(self.generator)
        out = self.model(input_ids=ids, labels=ids, use_cache=False)
        if number > 4:
            self.kept.append(out.logits)
        out.loss.backward()
        self.losses.append(float(out.loss.detach()))
        self.update()
        if len(self.kept) > 2:
            self.losses.append(float(self.kept.pop(0).detach().double().sum()))


class Optimizers(Plain):
    """Two optimizers: matrices by SGD with momentum, the rest by Adam."""

    def build(self):
        self.model = llama()
        parameters = list(self.model.parameters())
        self.optimizers = [torch.optim.SGD([p for p in parameters if p.dim() == 2], lr=0.05, momentum=0.9),
                           torch.optim.Adam([p for p in parameters if p.dim() != 2], lr=1e-3)]


class Adversaries(Plain):
    """A generator and a critic, which take turns."""

    def build(self):
        def mlp(*sizes):
            return nn.Sequential(*(layer for a, b in zip(sizes, sizes[1:]) for layer in (nn.Linear(a, b), nn.Tanh())))

        self.maker, self.critic = mlp(8, 96, 32), mlp(32, 128, 1)
        self.optimizers = [torch.optim.AdamW(each.parameters()) for each in (self.maker, self.critic)]

    def step(self, number):
        real = torch.randn(64, 32, generator=self.generator)
        noise = torch.randn(64, 8, generator=self.generator)
        loss = self.critic(self.maker(noise).detach()).mean() - self.critic(real).mean()
        loss.backward()
        self.optimizers[1].step()
        self.optimizers[1].zero_grad()
        self.losses.append(float(loss.detach()))
        loss = -self.critic(self.maker(noise)).mean()
        loss.backward()
        self.optimizers[0].step()
        self.optimizers[0].zero_grad()
        self.losses.append(float(loss.detach()))


class Experts(Plain):
    """A mixture of experts: the tokens of each expert, and so the sizes, differ between steps."""

    steps = 16

    def build(self):
        from transformers import MixtralConfig, MixtralForCausalLM
        self.model = MixtralForCausalLM(MixtralConfig(
            vocab_size=WORDS, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, num_local_experts=8, num_experts_per_tok=2, output_router_logits=True,
            experts_implementation="eager"))
        self.optimizers = [torch.optim.AdamW(self.model.parameters(), lr=1e-3)]


class Reinforcement(Plain):
    """Generates answers, and learns from them with the client's log-probabilities against a reference model's."""

    steps = 8

    def build(self):
        super().build()
        self.reference = llama()
        self.reference.load_state_dict(self.model.state_dict())
        self.reference.requires_grad_(False)

    def step(self, number):
        from bucketpool.torch.logprob import logprobs_from_logits
        torch.manual_seed(100 + number)
        prompt = tokens(self.generator, 8)
        with torch.no_grad():
            answer = self.model.generate(prompt, max_new_tokens=12, min_new_tokens=12, do_sample=True, pad_token_id=0)
            logits = self.reference(input_ids=answer, use_cache=False).logits[:, :-1]
            before = logprobs_from_logits(logits, answer[:, 1:])
        logits = self.model(input_ids=answer, use_cache=False).logits[:, :-1]
        now = logprobs_from_logits(logits, answer[:, 1:])
        reward = (answer[:, 1:] % 2).float() - 0.5
        ratio = (now - before).exp()
        loss = -(ratio * reward).mean()
        loss.backward()
        self.losses += [float(loss.detach()), float(answer.sum())]
        self.update()


class Threads(Plain):
    """Two threads train a model each."""

    def build(self):
        self.models = [llama(), llama(num_hidden_layers=2)]
        self.optimizers = [torch.optim.AdamW(model.parameters(), lr=1e-3) for model in self.models]
        self.generators = [torch.Generator().manual_seed(each) for each in (1, 2)]
        self.each = [[], []]

    def run(self, each=lambda number: None):
        def train(which):
            for number in range(self.steps):
                self.each[which].append(float(self.loss(tokens(self.generators[which]), self.models[which])))
                self.optimizers[which].step()
                self.optimizers[which].zero_grad()

        threads = [threading.Thread(target=train, args=(which, )) for which in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        each(self.steps)
        return self.each


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.randint(0, WORDS, (LENGTH, ), generator=torch.Generator().manual_seed(index))


class Loader(Plain):
    """A DataLoader with two forked workers, made anew in the middle of the served steps."""

    def build(self):
        super().build()
        self.rows = iter(())

    def step(self, number):
        if number % 6 == 0:
            self.rows = iter(torch.utils.data.DataLoader(Rows(), batch_size=BATCH, num_workers=2,
                                                         multiprocessing_context="fork"))
        self.losses.append(float(self.loss(next(self.rows))))
        self.update()


class Checkpointing(Plain):
    def build(self):
        super().build()
        self.model.gradient_checkpointing_enable()


class Compiled(Plain):
    """torch.compile, by Inductor's C++ where it works."""

    def build(self):
        torch._dynamo.reset()
        self.plain = nn.Sequential(*(nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 192), nn.GELU(), nn.Linear(192, 64))
                                     for _ in range(3)))
        self.optimizers = [torch.optim.AdamW(self.plain.parameters(), lr=1e-3)]
        self.backend = BACKEND
        self.compiled = torch.compile(self.plain, backend=self.backend)

    def step(self, number):
        loss = self.compiled(torch.randn(BATCH, LENGTH, 64, generator=self.generator)).pow(2).mean()
        loss.backward()
        self.losses.append(float(loss.detach()))
        self.update()


class Other(Plain):
    """Another model than the plan's."""

    steps = 10

    def build(self):
        self.model = llama(hidden_size=96, num_hidden_layers=2)
        self.optimizers = [torch.optim.AdamW(self.model.parameters(), lr=1e-3)]


CASES = {kind.__name__.lower(): kind for kind in (Plain, Accumulate, Lengths, Evaluate, Exceptions, Kept, Optimizers, Adversaries, Experts,
                                                  Reinforcement, Threads, Loader, Checkpointing, Compiled, Other)}
BACKEND = "inductor"


def choose_backend():
    global BACKEND
    try:
        torch.compile(lambda x: x.sin() + 1)(torch.ones(4))
    except Exception:
        BACKEND = "aot_eager"


def main():
    from bucketpool.torch import steps
    from bucketpool.torch.steps._decorator import installed

    options = argparse.ArgumentParser()
    options.add_argument("case", choices=CASES)
    options.add_argument("--plan")
    options.add_argument("--save")
    options = options.parse_args()
    if options.case == "compiled":
        choose_backend()
    plain = CASES[options.case]().run()
    gc.collect()
    shares, before = [], [0, 0]

    def each(_number):
        served.check()
        if served.state not in ("waiting", "serving"):
            shares.append("0/0")
            return
        counts = served._devices[0].decorator.statistics().outcomes
        now = [sum(counts) - counts[6], counts[0]]
        shares.append(f"{now[1] - before[1]}/{now[0] - before[0]}")
        before[:] = now

    installed("cpu").bp_decorator_poison(1)
    with steps.serve(options.plan, device="cpu", record=CASES[options.case].record, save=options.save) as served:
        losses = CASES[options.case]().run(each)
        summary, text = served.summary(), served.report()
    print(json.dumps({"case": options.case, "equal": losses == plain, "losses": losses, "backend": BACKEND, "steps": shares,
                      "text": text, "summary": summary}))


if __name__ == "__main__":
    main()
