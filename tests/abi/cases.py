"""Every kind of broken environment, each with a clean twin. docs/abi.md lists them; a test compares the two."""

from abi import host_file_cases, metadata_cases, torch_cuda_cases
from abi.case import Case

CASES: list[Case] = [*torch_cuda_cases.CASES, *host_file_cases.CASES, *metadata_cases.CASES]
