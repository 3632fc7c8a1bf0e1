import torch


class TorchSignum(torch.optim.Optimizer):
    def __init__(self, groups, beta):
        super().__init__(groups, {"beta": beta})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                if "momentum" not in state:
                    state["momentum"] = torch.zeros_like(weight)
                momentum = state["momentum"].lerp_(weight.grad, 1 - group["beta"])
                weight.mul_(1 - group["lr"] * group["weight_decay"]).add_(momentum.sign(), alpha=-group["lr"])
