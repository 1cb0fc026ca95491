"""What clients bring to a round and keep from it, in the lane where they train: personal layers, control variates."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from manyeyes.engine.lane import Lane, Shared
from manyeyes.engine.reference import Reference, kept_slots
from manyeyes.work import Client, Clients, Work


class Keeping:
    """Plain launches beside the captured ones, only for algorithms whose clients keep something or report."""

    def __init__(self, reference: Reference, shared: Shared, work: Work, clients: Clients) -> None:
        self.reference, self.shared, self.work, self.clients = reference, shared, work, clients
        self.keeps: dict[int, dict[str, Tensor]] = {}
        self._needed = work.personal is not None or work.correct is not None or work.local.keep
        self._gradients: dict[int, Tensor] = {}

    def resume(self, lane: Lane, members: Sequence[Client]) -> None:
        """What the clients kept last time goes into the lane where they begin."""
        if not self._needed:
            return
        for k, client in enumerate(members):
            own = self.clients.get(client.key, {})
            lane.resume(k, own.get("personal"), own.get("control"), kept_slots(own))
            if self.work.correct is not None and self.work.correct.whole:
                weights = self.shared.weights if lane.start is None else lane.start[k]
                theta, statistics = weights[: self.shared.trained], weights[self.shared.trained :]
                self._gradients[client.key] = self.reference.whole_gradient(theta, statistics, client)

    def take(self, lane: Lane, members: Sequence[Client]) -> None:
        """What the clients keep and report, as far as it is finite."""
        if not self._needed:
            return
        end_KW, update_KW = lane.end(len(members)), lane.update(len(members))
        sent_KW = update_KW if self.shared.mask is None else update_KW * self.shared.mask
        for k, client in enumerate(members):
            keeps: dict[str, Tensor] = {}
            report = None
            if self.shared.own is not None:
                keeps["personal"] = end_KW[k].index_select(0, self.shared.own)
            if self.work.correct is not None:
                own = self.clients.get(client.key, {}).get("control")
                control, report = self.work.correct.finish(
                    self.work.shared,  # not the lanes' copy, which the next round overwrites: it may be kept
                    own,
                    sent_KW[k, : self.shared.trained],
                    client.steps * float(self.work.lr),
                    self._gradients.pop(client.key, None),
                )
                keeps |= {} if control is None else {"control": control}
            if self.work.local.keep:
                keeps |= {f"slot{i}": slot[k].clone() for i, slot in enumerate(lane.slots)}
            tensors = [update_KW[k], *keeps.values(), *(() if report is None else (report,))]
            sound = torch.stack([torch.isfinite(torch.linalg.vector_norm(t)) for t in tensors]).all()
            sound &= torch.isfinite(lane.losses[k])
            lane.sound[k] = sound
            if report is not None:
                report = torch.where(sound, report, 0)
                lane.reports = report if lane.reports is None else lane.reports + report
            if keeps:
                self.keeps[client.key] = keeps
