import logging
from copy import copy
from typing import Optional, Union

import torch

from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.managers.schedule_batch import ModelWorkerBatch, ScheduleBatch
from sglang.srt.managers.scheduler import GenerationBatchResult
from sglang.srt.managers.tp_worker import TpModelWorker
from sglang.srt.server_args import ServerArgs
from sglang.srt.speculative.ddtree_args import check_ddtree_target, max_ddtree_budget
from sglang.srt.speculative.ddtree_info import (
    append_committed_tokens,
    reserve_tree_slots,
)
from sglang.srt.speculative.ddtree_sampling import (
    choose_target_tokens,
    needs_ddtree_sampler,
)
from sglang.srt.speculative.ddtree_step import DDTreeStep
from sglang.srt.speculative.dflash_info import DFlashDraftInput
from sglang.srt.speculative.dflash_worker import DFlashWorker

logger = logging.getLogger(__name__)


class DDTreeWorker(DFlashWorker):
    """DDTree speculative decoding worker (spec-v1, tp>=1/pp=1).

    Drafts like DFLASH, but verifies a tree of the most probable prefixes under the
    draft's marginals (arXiv 2604.12989) where DFLASH verifies their argmax chain.
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
        self.budget = max_ddtree_budget(server_args)
        # KV slots per request past its committed length: tree nodes or draft block.
        self.num_reserved_slots = server_args.speculative_num_draft_tokens
        self.step = DDTreeStep(
            target_runner=self.model_runner,
            draft_runner=self.draft_model_runner,
            block_size=self.block_size,
            mask_token_id=self._mask_token_id,
            attn_backends=(
                self.model_runner.attn_backend,
                self.draft_model_runner.attn_backend,
            ),
        )
        if self.tp_rank == 0:
            logger.info(
                "Initialized DDTREE worker. budget=%s, block_size=%s, reserved_slots=%s",
                self.budget,
                self.block_size,
                self.num_reserved_slots,
            )

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
            return super().forward_batch_generation(batch, **kwargs)

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

        reserve_tree_slots(batch, self.num_reserved_slots, self.page_size)
        with torch.inference_mode():
            packed = self._run_step(batch, draft_input.verified_id)
        return self._process_commits(batch, draft_input, packed)

    def _run_step(self, batch: ScheduleBatch, root_tokens: torch.Tensor) -> torch.Tensor:
        """Run the device side of a step; see `DDTreeStep.commit` for the result."""
        step = self.step
        request_args = (batch.req_pool_indices, batch.seq_lens)
        tree = step.draft(*request_args, root_tokens, self.budget)
        logits, hidden = step.verify(tree, *request_args, batch.seq_lens_cpu)
        if needs_ddtree_sampler(batch.sampling_info):
            target_tokens = choose_target_tokens(
                batch=batch,
                tree=tree,
                logits=logits,
                sampler=self.model_runner.sampler,
            )
        else:
            target_tokens = torch.argmax(logits, dim=-1).view(tree.tokens.shape)
        return step.commit(tree, target_tokens, hidden, *request_args)

    def _process_commits(
        self,
        batch: ScheduleBatch,
        draft_input: DFlashDraftInput,
        packed: torch.Tensor,
    ) -> GenerationBatchResult:
        """Hand a step's tokens to the requests and move the batch past them."""
        # Single D2H transfer: commit length + tokens.
        num_accepted_drafts_per_req, num_tokens = append_committed_tokens(
            batch, packed.tolist()
        )
        commit_lens = packed[:, 0]
        draft_input.verified_id = packed.gather(1, commit_lens.unsqueeze(1)).squeeze(1)
        batch.seq_lens.add_(commit_lens)
        batch.seq_lens_cpu.add_(commit_lens.to("cpu"))
        # Keep seq_lens_sum in sync; flashinfer indices updaters rely on this for buffer sizing.
        batch.seq_lens_sum += num_tokens
        draft_input.draft_seq_lens = batch.seq_lens.to(torch.int32)

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
            can_run_cuda_graph=False,
        )
