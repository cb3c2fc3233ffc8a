import pytest

from ddtree_deploy.abi.demangle import demangle, uses_old_string

# Right-hand sides are what c++filt 2.40 prints (std::string shortened).
NAMES = {
    "_ZN3c104cuda9SetDeviceEi": "c10::cuda::SetDevice(int)",
    "_ZN5torch7LibraryC1ENS0_4KindESsSt8optionalIN3c1011DispatchKeyEEPKcj": (
        "torch::Library::Library(torch::Library::Kind, std::string, std::optional<c10::DispatchKey>, char const*, "
        "unsigned int)"
    ),
    "_ZNK2at10TensorBase8toStringEv": "at::TensorBase::toString() const",
    "_ZN3c1013C10FlagParser5ParseIbEEbRKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEEPT_": (
        "bool c10::C10FlagParser::Parse<bool>(std::string const&, bool*)"
    ),
    "_ZTIN3c1020intrusive_ptr_targetE": "typeinfo for c10::intrusive_ptr_target",
    "_ZN3c104warnERKNS_7WarningE": "c10::warn(c10::Warning const&)",
    "_ZN2atlsERSoRKNS_7DimnameE": "at::operator<<(std::ostream&, at::Dimname const&)",
    "_ZN3c10eqERKNS_6ScalarEPFviE": "c10::operator==(c10::Scalar const&, void (*)(int))",
    "_ZN2at4_ops5empty4callENS_8OptionalIA4_iEE": "at::_ops::empty::call(at::Optional<int [4]>)",
}


@pytest.mark.parametrize(("mangled", "readable"), NAMES.items())
def test_names_read_as_cxxfilt_prints_them(mangled: str, readable: str) -> None:
    assert demangle(mangled) == readable


@pytest.mark.parametrize(
    "name", ["PyInit_x", "_Z", "_ZN", "_ZN3c10", "_ZN99x", "_ZNS_1aE", "_ZT", "_ZN1aIXT_EE", "_Z1fDpOT_", "main", ""]
)
def test_what_is_not_certain_stays_as_it_is(name: str) -> None:
    assert demangle(name) == name


@pytest.mark.parametrize(
    ("name", "old"),
    [
        ("_ZN5torch3jit11parseSchemaERKSs", True),
        ("_ZN3c106detail14torchCheckFailEPKcS2_jRKSs", True),
        ("_ZN5torch3jit11parseSchemaERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE", False),
        ("_ZN2atlsERSoRKNS_7DimnameE", False),  # std::ostream is the same in both
        ("_ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_ib", False),
        ("_ZN2at6ClassSsEv", False),  # part of a name
    ],
)
def test_the_old_string_is_told_from_the_new_one(name: str, old: bool) -> None:
    assert uses_old_string(name) is old
