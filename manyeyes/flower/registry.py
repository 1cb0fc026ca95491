"""The client registry: which node is which member, and which members a round samples, while nodes come and go."""

import sys
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np
from flwr.app import ConfigRecord, MessageType, RecordDict
from flwr.serverapp import Grid

from manyeyes.core.algorithm import Algorithm, Sampler
from manyeyes.core.plan import RoundPlan, plan_round
from manyeyes.core.population import Ints, Population
from manyeyes.flower.app import FederationConfig
from manyeyes.flower.members import ClientInfo, Members, read_client_info, resolve_members
from manyeyes.flower.messages import CONFIG, InvalidReply, send_tasks
from manyeyes.flower.protection import bound_plan


@dataclass
class ClientRegistry:
    """Queries every unknown node for its client, and again at most `max_retries` times."""

    grid: Grid
    config: FederationConfig
    needs_class_counts: bool  # whether clients report how many images of each class they hold
    members: Members = field(init=False)  # set when the clients have joined, or by a run that is resumed
    _nodes: dict[int, int] = field(default_factory=dict)  # by client id
    _queries: Counter[int] = field(default_factory=Counter)  # by node
    _printed: set[str] = field(default_factory=set)

    def wait_for_clients(self, min_clients: int) -> None:
        """Wait until this many clients are connected; all connected clients become members."""
        infos: dict[int, ClientInfo] = {}
        timeout = self.config.join_timeout
        deadline = time.monotonic() + timeout
        while True:
            infos |= self._query(set(self.grid.get_node_ids()) - infos.keys())
            num_members = 0
            if infos:
                members, nodes, rejections = resolve_members(infos, self.config)
                num_members = len(members.all)
                if num_members >= min_clients:
                    break
            if time.monotonic() >= deadline:
                problem = f"Only {num_members} of {min_clients} clients joined within {timeout:g} seconds"
                raise ValueError(f"{problem}: start more nodes, or raise join_timeout.")
            time.sleep(1)
        for reason in rejections.values():
            self._print_rejection(reason)
        self.members, self._nodes = members, nodes

    def connected(self) -> dict[int, int]:
        """Return the node of each connected member by client id; a member that returns may have a new node."""
        nodes = set(self.grid.get_node_ids())
        for node, info in self._query(nodes - set(self._nodes.values())).items():
            name = info.member.name
            member = next((m for m in self.members.all if m.name == name), None)
            if member is None:
                self._print_rejection(f"{name}: it joined after the start and is not in this run")
            elif self._nodes.get(member.client_id) in nodes:
                self._print_rejection(f"{name}: another connected client has this name")
            elif info.member.num_examples != member.num_examples:
                counts = f"{info.member.num_examples:,} images, and reported {member.num_examples:,} before"
                self._print_rejection(f"{name}: its data has changed since the start of the run: it reports {counts}")
            elif info.data != self.members.data:
                self._print_rejection(f"{name}: its data has changed since the start of the run")
            else:
                self._nodes[member.client_id] = node
        return {client_id: node for client_id, node in self._nodes.items() if node in nodes}

    def _query(self, nodes: Iterable[int]) -> dict[int, ClientInfo]:
        """Return what unknown nodes report; a node without a valid reply is queried again next time."""
        unknown_nodes = [node for node in nodes if self._queries[node] <= self.config.max_retries]
        self._queries.update(unknown_nodes)
        tasks = {node: RecordDict({CONFIG: ConfigRecord({})}) for node in unknown_nodes}
        infos: dict[int, ClientInfo] = {}
        for node, reply in send_tasks(self.grid, tasks, MessageType.QUERY, self.config.reply_timeout):
            try:
                if isinstance(reply, str):
                    raise InvalidReply(reply)
                infos[node] = read_client_info(reply.content, self.config, self.needs_class_counts)
            except InvalidReply as reason:
                self._print_rejection(f"node {node}: {reason}")
        return infos

    def _print_rejection(self, reason: str) -> None:
        if reason not in self._printed:
            self._printed.add(reason)
            print(f"rejected: {reason}", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class ConnectedSampler:
    """Sample from the connected clients if they suffice for a cohort; else from all, so that some will be missing."""

    sampler: Sampler
    client_ids: frozenset[int]  # connected

    def sample(self, population: Population, rng: np.random.Generator) -> Ints:
        is_connected = np.isin(population.user_ids, list(self.client_ids))
        if is_connected.sum() < getattr(self.sampler, "cohort_size", len(population.user_ids)):
            return self.sampler.sample(population, rng)
        connected = population.filter(np.repeat(is_connected, population.num_examples))
        return np.flatnonzero(is_connected)[self.sampler.sample(connected, rng)]


@dataclass(frozen=True, eq=False)
class ConnectedPlanSource:
    """Plan rounds over the connected clients; with privacy over all clients, as its accountant assumes.

    No client counts for more than its bounded share of a round.
    """

    algorithm: Algorithm
    population: Population
    registry: ClientRegistry
    seed: int

    def plan(self, round: int) -> RoundPlan:
        sampler = self.algorithm.sampler
        if self.algorithm.privacy is None:
            sampler = ConnectedSampler(sampler, frozenset(self.registry.connected()))
        # Example weights are drawn by the client; example indices of the plan are counted, never looked up.
        algorithm = replace(self.algorithm, sampler=sampler, example_weighting=None)
        plan = plan_round(algorithm, self.population, self.seed, round)
        return bound_plan(plan, algorithm, self.population, self.registry.config)
