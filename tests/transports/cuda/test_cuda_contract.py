"""What any device has to do, collected a second time over the CUDA device, on every path over the link."""

# The fixtures of this folder's conftest.py take the place of the host device's.
import inspect
from collections.abc import Callable
from typing import Any

import pytest
from tests.transports import test_blocks, test_host, test_host_faults, test_interleavings
from tests.transports.test_blocks import (  # noqa: F401
    test_a_read_is_a_copy,
    test_a_typed_view_is_the_memory_itself,
    test_ids_are_checked_before_anything_is_read,
    test_poison_covers_every_layer_of_its_group_and_nothing_else,
    test_tokens_that_do_not_fit_a_block_are_refused,
    test_written_tokens_stand_where_attention_reads_them,
)
from tests.transports.test_host import (  # noqa: F401
    test_a2_a3_figures_are_counted_apart_and_agree_with_the_memories_own_counters,
    test_a4_ragged_rows_of_layers_never_cross,
    test_a_held_operation_waits_and_so_does_what_is_behind_it_in_its_stream,
    test_a_move_and_a_store_read_their_sources_when_they_run,
    test_a_row_that_shows_another_generation_is_an_error,
    test_a_transfer_copies_when_its_stream_runs_not_when_it_is_queued,
    test_b7_a_remap_moves_no_byte_and_writes_its_row,
    test_c2_a_packed_upload_equals_a_natural_one_after_unpack_and_a_store_packs_again,
    test_completions_are_out_of_order_between_streams_and_in_order_inside_one,
    test_f1_a_transfer_of_zero_bytes_writes_its_row_and_completes,
    test_f5_two_lives_of_one_id_have_rows_of_their_own,
    test_g3_a_row_shows_its_generation_until_the_next_one_is_written,
    test_nothing_is_written_by_queue,
    test_table_rows_are_bounded_and_come_back_when_a_request_is_forgotten,
    test_the_queue_is_bounded_and_polling_makes_room,
)
from tests.transports.test_host_faults import (  # noqa: F401
    test_a_failed_copy_fails_its_operation_and_no_other,
    test_a_row_shows_what_stands_there_whatever_generation_is_asked_for,
    test_an_operation_is_not_queued_twice,
    test_cancel_of_a_queued_operation_stops_it_and_nothing_of_it_runs,
    test_cancel_of_a_started_operation_lets_it_finish_and_say_so,
    test_d7_work_that_does_not_fit_is_refused_at_the_door,
    test_early_reuse_of_a_freed_block_is_seen_as_wrong_bytes,
)
from tests.transports.test_rank import (  # noqa: F401
    test_a_failed_copy_is_a_failed_report_with_its_reason_noted,
    test_a_repeated_start_does_no_work_and_repeats_the_report,
    test_cancel_before_the_start_is_a_promise_to_refuse_it,
    test_g2_the_report_comes_after_the_copies_and_the_row,
    worker,
)

NOT_HERE = {
    "test_g2_the_row_is_written_after_every_copy_and_then_the_operation_is_done": "counts the host's stream items",
    "test_d8_advance_stops_rather_than_reuse_a_slot_that_waits_for_its_unpack": "counts the host's stream items",
    "test_an_error_inside_a_kernel_is_a_failed_completion_with_the_bytes_that_did_move": "locks NumPy memory",
    "test_d8_a_failed_operation_gives_back_its_own_staging_and_nobody_elses": "counts the host's stream items",
    "test_a_slot_must_hold_a_block_of_every_group": "makes a host device",
    "test_the_cpu_memory_must_have_the_devices_layout": "makes a host device",
    "test_a_copy_that_fails_half_way_has_moved_what_came_before": "counts the host's stream items",
    "test_staging_begins_at_a_line_of_the_cache": "of the CPU's memory",
    "test_streams_are_the_four_that_the_documentation_names": "of the host device",
    "test_new_memory_reads_as_nan": "of the CPU's memory",
    "test_every_group_has_pages_of_its_own": "of the CPU's memory",
    "test_tokens_are_packed_where_the_cpu_keeps_packed_blocks": "of the CPU's memory",
}
"""Tests of the host device that have a counterpart beside this file, or nothing to do with a device."""


def test_every_test_of_the_host_device_is_run_here_or_named() -> None:
    tests = {
        name
        for module in (test_host, test_host_faults, test_blocks)
        for name, value in vars(module).items()
        if name.startswith("test_") and inspect.isfunction(value)
    }
    assert tests - set(NOT_HERE) <= set(globals())
    assert set(NOT_HERE) <= tests


@pytest.mark.parametrize("seed", range(20260916, 20260922))
def test_d8_a4_any_interleaving_of_streams_gives_the_bytes_of_a_plain_table_on_cuda(
    make_world: Callable[..., Any], rounds: int, seed: int
) -> None:
    test_interleavings.test_d8_a4_any_interleaving_of_streams_gives_the_bytes_of_a_plain_table(make_world, rounds, seed)
