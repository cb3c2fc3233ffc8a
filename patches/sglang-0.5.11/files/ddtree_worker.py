from __future__ import annotations

import logging
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, List, Optional, Union

import torch

from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.managers.schedule_batch import ModelWorkerBatch, Req, ScheduleBatch
from sglang.srt.managers.scheduler import GenerationBatchResult
from sglang.srt.managers.tp_worker import TpModelWorker
from sglang.srt.model_executor.cuda_graph_runner import get_batch_sizes_to_capture
from sglang.srt.server_args import ServerArgs
from sglang.srt.speculative.ddtree_args import (
    check_ddtree_target,
    ddtree_max_req_len,
    ddtree_reserved_slots,
    max_ddtree_budget,
)
from sglang.srt.speculative.ddtree_budget import AutoBudget, FixedBudget, auto_shapes
from sglang.srt.speculative.ddtree_info import (
    append_committed_tokens,
    reserve_tree_slots,
)
from sglang.srt.speculative.ddtree_sampling import (
    choose_target_tokens,
    needs_ddtree_sampler,
    needs_logit_edits,
)
from sglang.srt.speculative.ddtree_step import EXPECTED_UNIT, DDTreeStep
from sglang.srt.speculative.ddtree_utils import DDTree, ddtree_path_len
from sglang.srt.speculative.dflash_info import DFlashDraftInput
from sglang.srt.speculative.dflash_worker import DFlashWorker
from sglang.srt.utils import is_pin_memory_available

if TYPE_CHECKING:
    from sglang.srt.speculative.ddtree_graph_runner import DDTreeCudaGraphRunner
    from sglang.srt.speculative.ddtree_prefill import DDTreePrefillRunner

logger = logging.getLogger(__name__)

# A step is taken to end requests that want no more tokens than this.
_LIKELY_COMMIT = 3
# Context lengths at which `auto` measures the cost of a step.
_COST_CONTEXTS = (256, 4096)


@dataclass
class LaunchedStep:
    """A step on its way on the device, whose result the host has not read yet."""

    reqs: List[Req]
    budget: int
    packed: torch.Tensor  # see DDTreeStep.commit
    packed_cpu: torch.Tensor
    done: Optional[torch.cuda.Event]  # None on a CPU
    can_run_cuda_graph: bool


class DDTreeWorker(DFlashWorker):
    """DDTree speculative decoding worker (spec-v1, tp>=1/pp=1).

    Drafts like DFLASH, but verifies a tree of the most probable prefixes under the
    draft's marginals (arXiv 2604.12989) where DFLASH verifies their argmax chain.

    With CUDA graphs a step runs ahead of the host: the next step is launched before the
    result of the last one is read, so the device does not wait for the scheduler. What
    it needs is on the device; only who is in the batch is decided by the host, so the
    rows of requests that have left in the meantime are dropped, and requests that have
    joined get their first step one call later.
    """

    def __init__(
        self,
        server_args: ServerArgs,
        gpu_id: int,
        tp_rank: int,
        dp_rank: Optional[int],
        moe_ep_rank: int,
        attn_cp_rank: int,
        moe_dp_rank: int,
        nccl_port: int,
        target_worker: TpModelWorker,
    ):
        check_ddtree_target(target_worker.model_runner)
        target_worker.max_req_len = min(
            target_worker.max_req_len, ddtree_max_req_len(target_worker.model_runner)
        )
        target_worker.max_req_input_len = target_worker.max_req_len - 5

        # The draft runs over a block, not over the tree.
        draft_server_args = copy(server_args)
        draft_server_args.speculative_num_draft_tokens = (
            server_args.speculative_dflash_block_size
        )
        super().__init__(
            server_args=draft_server_args,
            gpu_id=gpu_id,
            tp_rank=tp_rank,
            dp_rank=dp_rank,
            moe_ep_rank=moe_ep_rank,
            attn_cp_rank=attn_cp_rank,
            moe_dp_rank=moe_dp_rank,
            nccl_port=nccl_port,
            target_worker=target_worker,
        )
        self.server_args = server_args
        self.num_reserved_slots = ddtree_reserved_slots(server_args)
        self.step = DDTreeStep(
            target_runner=self.model_runner,
            draft_runner=self.draft_model_runner,
            block_size=self.block_size,
            mask_token_id=self._mask_token_id,
            attn_backends=self._make_attn_backends(),
            fused_kv_helper=self._fused_kv_helper,
        )
        self.budget = FixedBudget(max_ddtree_budget(server_args))
        self.graph_runner: Optional[DDTreeCudaGraphRunner] = None
        self.prefill_runner: Optional[DDTreePrefillRunner] = None
        if self.device == "cuda" and not server_args.disable_cuda_graph:
            self._init_cuda_graphs()
        self._compiled_prefill = False
        self._launched: Optional[LaunchedStep] = None
        self._pinned: List[torch.Tensor] = []
        if self.tp_rank == 0:
            logger.info(
                "Initialized DDTREE worker. budget=%s, sizes=%s, block_size=%s, reserved_slots=%s",
                server_args.speculative_ddtree_budget,
                self.budget.sizes,
                self.block_size,
                self.num_reserved_slots,
            )

    def _make_attn_backends(self):
        """Attention backends (target, draft) of the TARGET_VERIFY forwards."""
        if self.device == "cpu":
            return self.model_runner.attn_backend, self.draft_model_runner.attn_backend

        from sglang.srt.speculative.ddtree_attention import DDTreeAttnBackend

        return (
            DDTreeAttnBackend(self.model_runner),
            DDTreeAttnBackend(self.draft_model_runner),
        )

    def _init_cuda_graphs(self) -> None:
        from sglang.srt.speculative.ddtree_graph_runner import DDTreeCudaGraphRunner
        from sglang.srt.speculative.ddtree_prefill import DDTreePrefillRunner

        max_budget = self.budget.max_budget
        is_auto = self.server_args.speculative_ddtree_budget == "auto"
        capture_bs, _ = get_batch_sizes_to_capture(self.model_runner, max_budget + 1)
        self.graph_runner = DDTreeCudaGraphRunner(
            self.step,
            (
                auto_shapes(capture_bs, max_budget)
                if is_auto
                else [(bs, max_budget) for bs in capture_bs]
            ),
            self.model_runner.model_config.vocab_size,
        )
        if is_auto:
            self.budget = self._measure_auto_budget(max_budget)
        self.prefill_runner = DDTreePrefillRunner(self.graph_runner)

    def _measure_auto_budget(self, max_budget: int) -> AutoBudget:
        longest = self.model_runner.model_config.context_len - max_budget
        contexts = sorted({max(1, min(x, longest)) for x in _COST_CONTEXTS})
        costs = self.graph_runner.measure(contexts)
        # All TP ranks must choose alike.
        table = torch.tensor(list(costs.values()), device=self.device)
        table = self.model_runner.tp_group.broadcast(table)
        costs = dict(zip(costs, table.tolist()))
        if self.tp_rank == 0:
            logger.info(
                "DDTREE step cost in ms by (batch size, budget) at context lengths %s: %s",
                contexts,
                {k: [round(t, 2) for t in v] for k, v in sorted(costs.items())},
            )
        return AutoBudget(costs, contexts, max_budget)

    def forward_batch_generation(
        self,
        batch: Union[ScheduleBatch, ModelWorkerBatch],
        **kwargs,
    ) -> GenerationBatchResult:
        if (
            isinstance(batch, ModelWorkerBatch)
            or batch.forward_mode.is_extend()
            or batch.is_extend_in_batch
            or batch.forward_mode.is_idle()
        ):
            self._forget_prefilled(batch)
            if self._replays_prefill(batch):
                return self._replay_prefill(batch)
            result = super().forward_batch_generation(batch, **kwargs)
            if isinstance(batch.spec_info, DFlashDraftInput):
                # An empty slice, which would keep the features of all prompt tokens.
                target_hidden = batch.spec_info.target_hidden
                batch.spec_info.target_hidden = target_hidden.clone()
            return result

        draft_input = batch.spec_info
        if not isinstance(draft_input, DFlashDraftInput):
            raise RuntimeError(
                "DDTREE decode requires DFlashDraftInput state on the running batch. "
                "This usually means the request did not complete the prefill stage."
            )
        if batch.has_grammar or batch.return_logprob:
            raise RuntimeError(
                "Invariant broken: DDTREE batch requested grammar or return_logprob, but scheduler "
                "should have rejected this request."
            )

        with torch.inference_mode():
            reserve_tree_slots(batch, self.num_reserved_slots, self.page_size)
            step = self._launched
            if step is None or not any(req in step.reqs for req in batch.reqs):
                step = self._launch(batch, draft_input)
            self._launched = None

            packed = self._rows_of(step, batch, draft_input)
            draft_input.verified_id = packed[:, 1]
            batch.seq_lens.add_(packed[:, 0])
            if self._can_run_ahead(step, batch):
                self._launched = self._launch(batch, draft_input)
            return self._finish(step, batch, draft_input)

    @staticmethod
    def _can_run_ahead(step: LaunchedStep, batch: ScheduleBatch) -> bool:
        # Logit edits need the output ids of this step first.
        if not step.can_run_cuda_graph or needs_logit_edits(batch.sampling_info):
            return False
        # Not worth it if this step is likely to end all requests.
        return any(
            req.sampling_params.max_new_tokens - len(req.output_ids) > _LIKELY_COMMIT
            for req in batch.reqs
        )

    def _forget_prefilled(self, batch: Union[ScheduleBatch, ModelWorkerBatch]) -> None:
        """A retracted request starts anew: what was launched for it does not count."""
        if self._launched is not None and any(
            req in self._launched.reqs for req in getattr(batch, "reqs", None) or ()
        ):
            self._launched = None

    def _replays_prefill(self, batch: Union[ScheduleBatch, ModelWorkerBatch]) -> bool:
        """Whether a captured prefill serves the batch.

        The first one after the start is eager: its kernels are compiled while the server
        warms up, and not when the first long prompt comes.
        """
        if self.prefill_runner is None or not batch.forward_mode.is_extend():
            return False
        is_first, self._compiled_prefill = not self._compiled_prefill, True
        return not is_first and self.prefill_runner.can_run(batch)

    def _replay_prefill(self, batch: ScheduleBatch) -> GenerationBatchResult:
        with torch.inference_mode():
            logits_output, next_token_ids = self.prefill_runner.run(batch)
        return GenerationBatchResult(
            logits_output=logits_output,
            next_token_ids=next_token_ids,
            num_accepted_drafts=0,
            can_run_cuda_graph=True,
        )

    # ---- device side ------------------------------------------------------------

    def _launch(
        self, batch: ScheduleBatch, draft_input: DFlashDraftInput
    ) -> LaunchedStep:
        """Queue a step for all requests of the batch, from its state on the device."""
        bs = batch.batch_size()
        budget = self.budget.choose(bs, batch.seq_lens_sum / bs)
        can_run_graph = self.graph_runner is not None and self.graph_runner.can_run(
            bs, budget
        )
        run_step = self._replay_step if can_run_graph else self._run_step
        packed = run_step(batch, draft_input.verified_id, budget)
        packed_cpu, done = self._to_host(packed)
        return LaunchedStep(
            list(batch.reqs), budget, packed, packed_cpu, done, can_run_graph
        )

    def _replay_step(
        self, batch: ScheduleBatch, root_tokens: torch.Tensor, budget: int
    ) -> torch.Tensor:
        """`_run_step` with CUDA graphs."""
        runner = self.graph_runner
        bs = batch.batch_size()
        graphs = runner.graphs[runner.padded_bs(bs), budget]
        runner.load(batch.req_pool_indices, batch.seq_lens, root_tokens)
        graphs.front.replay()
        if needs_ddtree_sampler(batch.sampling_info):
            graphs.target_tokens[:bs] = choose_target_tokens(
                batch=batch,
                tree=DDTree(*(x[:bs] for x in graphs.tree)),
                logits=graphs.logits[: bs * (budget + 1)],
                sampler=self.model_runner.sampler,
                tp_group=self.model_runner.tp_group,
            )
        graphs.back.replay()
        # The static tensor is overwritten by the next step.
        return graphs.packed[:bs].clone()

    def _run_step(
        self, batch: ScheduleBatch, root_tokens: torch.Tensor, budget: int
    ) -> torch.Tensor:
        """Run the device side of a step; see `DDTreeStep.commit` for the result."""
        step = self.step
        request_args = (batch.req_pool_indices, batch.seq_lens)
        tree = step.draft(*request_args, root_tokens, budget)
        seq_lens_cpu = batch.seq_lens if self.device == "cpu" else None
        logits, hidden = step.verify(tree, *request_args, seq_lens_cpu)
        if needs_ddtree_sampler(batch.sampling_info):
            target_tokens = choose_target_tokens(
                batch=batch,
                tree=tree,
                logits=logits,
                sampler=self.model_runner.sampler,
                tp_group=self.model_runner.tp_group,
            )
        else:
            target_tokens = torch.argmax(logits, dim=-1).view(tree.tokens.shape)
        return step.commit(tree, target_tokens, hidden, *request_args)

    def _to_host(self, packed: torch.Tensor):
        """The one device-to-host copy of a step; two steps can be on their way."""
        if self.device == "cpu":
            return packed, None
        if not self._pinned or self._pinned[0].numel() < packed.numel():
            rows = max(self.server_args.max_running_requests or 0, packed.shape[0])
            self._pinned = [
                torch.empty(
                    rows * (packed.shape[1] + 16), dtype=packed.dtype, pin_memory=True
                )
                for _ in range(3)
            ]
        self._pinned.append(self._pinned.pop(0))
        packed_cpu = self._pinned[0][: packed.numel()].view(packed.shape)
        packed_cpu.copy_(packed, non_blocking=True)
        done = torch.cuda.Event()
        done.record()
        return packed_cpu, done

    def _rows_of(
        self, step: LaunchedStep, batch: ScheduleBatch, draft_input: DFlashDraftInput
    ) -> torch.Tensor:
        """A step's rows in the order of the batch, on the device.

        Requests that were not in the step commit nothing and keep their root.
        """
        if step.reqs == batch.reqs:
            return step.packed
        rows = [step.reqs.index(r) if r in step.reqs else -1 for r in batch.reqs]
        index = torch.tensor(rows, pin_memory=is_pin_memory_available(self.device)).to(
            self.device, non_blocking=True
        )
        packed = step.packed[index.clamp(min=0), :2]
        nothing = torch.stack(
            [torch.zeros_like(draft_input.verified_id), draft_input.verified_id], dim=1
        )
        return torch.where((index >= 0).unsqueeze(1), packed, nothing)

    # ---- host side --------------------------------------------------------------

    def _finish(
        self, step: LaunchedStep, batch: ScheduleBatch, draft_input: DFlashDraftInput
    ) -> GenerationBatchResult:
        """Wait for a step and hand its tokens to the requests."""
        if step.done is not None:
            step.done.synchronize()
        rows = dict(zip(step.reqs, step.packed_cpu.tolist()))
        commits = [rows.get(req, [0, 0]) for req in batch.reqs]
        num_accepted_drafts_per_req = append_committed_tokens(batch.reqs, commits)

        commit_lens = [commit[0] for commit in commits]
        batch.seq_lens_cpu.add_(torch.tensor(commit_lens))
        # Keep seq_lens_sum in sync; flashinfer indices updaters rely on this for buffer sizing.
        batch.seq_lens_sum += sum(commit_lens)
        self._learn(step, rows.values())

        if not self._logged_first_verify and self.tp_rank == 0:
            logger.info(
                "DDTREE verify completed. num_accepted_drafts_per_req=%s",
                num_accepted_drafts_per_req,
            )
            self._logged_first_verify = True

        return GenerationBatchResult(
            logits_output=LogitsProcessorOutput(next_token_logits=None),
            next_token_ids=draft_input.verified_id,
            num_accepted_drafts=sum(num_accepted_drafts_per_req),
            num_accepted_drafts_per_req_cpu=num_accepted_drafts_per_req,
            can_run_cuda_graph=step.can_run_cuda_graph,
        )

    def _learn(self, step: LaunchedStep, rows) -> None:
        """Tell the budget what the step's trees promised and what was committed."""
        first = 2 + ddtree_path_len(self.block_size - 1, step.budget)
        num_sizes = step.packed.shape[1] - first
        if num_sizes <= 0:
            return
        sums = [sum(column) / len(step.reqs) for column in zip(*rows)]
        expected = [value / EXPECTED_UNIT for value in sums[first:]]
        self.budget.update(step.budget, expected, sums[0])
