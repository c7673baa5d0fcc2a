"""What is read of wandb's lines: its own forms over the years, and nothing of what only looks like them."""

from __future__ import annotations

import pytest

from self_healing.supervisor.wandb_runs.lines import Address, Said, read_address, read_folder_name, read_line

PAGE = "https://wandb.ai/team/project/runs/abc123def"
ADDRESS = Address("https://wandb.ai", "team", "project", "abc123def")


@pytest.mark.parametrize(
    "line",
    [
        f"wandb: \U0001f680 View run at {PAGE}",
        f"wandb: View run at {PAGE}",
        f"wandb: \xf0\u0178\u0161\u20ac View run at {PAGE}",
        f"wandb: \U0001f680 View run swift-dawn-1 at: {PAGE}",
        f"wandb: \U0001f680 View run lr at 3e-4 at: {PAGE}",
        f"[rank0]: wandb: View run at {PAGE}  ",
        f"wandb: View run at {PAGE}?apiKey=abc",
        "wandb: View run at https://forge.coreweave.com/wandb/team/project/runs/abc123def",
    ],
)
def test_the_page_of_a_run_is_read(line):
    assert read_line(line) == Said("abc123def", ADDRESS)


@pytest.mark.parametrize(
    "line",
    [
        "wandb: Run data is saved locally in wandb/run-20240115_103045-abc123def",
        "wandb: Run data is saved locally in /a folder/wandb/run-20240115_103045-abc123def",
        "wandb: Run data is saved locally in /a/wandb/offline-run-20240115_103045-abc123def",
        "wandb: wandb sync /a/wandb/offline-run-20240115_103045-abc123def",
        "wandb: Find logs at: ./wandb/run-20240115_103045-abc123def/logs",
    ],
)
def test_the_folder_of_a_run_is_read(line):
    assert read_line(line) == Said("abc123def", None)


def test_a_run_that_is_gone_on_with_is_told_from_a_new_one():
    assert read_line("wandb: Resuming run swift-dawn-1") == Said(is_old=True)
    assert read_line("wandb: Syncing run swift-dawn-1") is None


@pytest.mark.parametrize(
    "line",
    [
        f"the best so far is {PAGE}",
        f"View run at {PAGE}",
        f"wandb: the best so far is {PAGE}",
        f"wandb: View project at {PAGE.rpartition('/runs')[0]}",
        f"wandb: View sweep at {PAGE.replace('/runs/', '/sweeps/')}",
        f"wandb: View run at {PAGE} and more",
        f"wandb: View run at {PAGE}/files",
        f"wandb: View run at {PAGE}/",
        "wandb: View run at https://wandb.ai/team/project/runs/..",
        "wandb: View run at https://wandb.ai/team/project/runs/abc%2F..%2F..%2Fother",
        "wandb: View run at https://wandb.ai/team/project/runs/%2e%2e",
        "wandb: View run at https://wandb.ai/team/../runs/abc",
        "wandb: View run at https://wandb.ai/team/a%2Fb/runs/abc",
        "wandb: View run at https://wandb.ai/team/a%3Ab/runs/abc",
        "wandb: View run at https://wandb.ai/team/%20/runs/abc",
        "wandb: View run at https://wandb.ai/team//runs/abc",
        "wandb: View run at https://wandb.ai/project/runs/abc",
        "wandb: View run at https://me:secret@wandb.ai/team/project/runs/abc",
        "wandb: View run at ftp://wandb.ai/team/project/runs/abc",
        "wandb: View run at http://[wandb.ai/team/project/runs/abc",
        "wandb: Run data is saved locally in wandb/run-abc123def",
        "wandb: Run data is saved locally in wandb/run-20240115_103045-a b",
        "wandb: Run data is saved locally in wandb/run-20240115_103045-..",
        "wandb: Run data is saved locally in wandb/latest-run",
        "wandb: Run data is saved locally in ",
        "wandb:",
        "wandb: View",
        f"wandb: View run {'x' * 5000} at: {PAGE}",
    ],
)
def test_other_lines_name_no_run(line):
    assert read_line(line) is None


def test_names_with_blanks_and_services_with_a_path_are_read():
    read = read_address("http://Host:8080/app/my%20team/my%20project/runs/a.b-c_1")
    assert read == Address("http://host:8080/app", "my team", "my project", "a.b-c_1")


def test_the_name_of_a_folder_says_which_run_and_whether_it_is_offline():
    assert read_folder_name("run-20240115_103045-a-b") == ("a-b", False)
    assert read_folder_name("offline-run-20240115_103045-ab") == ("ab", True)
    assert read_folder_name("run-20240115_103045-a\nb") is None
    assert read_folder_name("xrun-20240115_103045-ab") is None
