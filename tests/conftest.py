import pytest
import torch


@pytest.hookimpl(wrapper=True)
def pytest_collect_file():
    """No doctests in tests: their collector would skip a test file whose imports fail, tests and all."""
    return [found for found in (yield) if type(found) is pytest.Module]


def pytest_collection_modifyitems(items):
    """Files with slow tests first: begun last, they would leave the other workers without work."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(autouse=True, scope="session")
def cache_in_the_home_folder():
    """Tests that set HOME have a cache of their own, whatever the variables of the machine say."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("TAUFREE_CACHE", raising=False)
        patch.delenv("XDG_CACHE_HOME", raising=False)
        yield


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Small tensors gain nothing from threads, and lose much where other programs want the cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def shop(tmp_path_factory):
    """A small data set for DCRec."""
    from tests.support.shop import write_shop  # needs PyTorch Geometric, as few tests do

    folder = tmp_path_factory.mktemp("shop")
    write_shop(folder)
    return folder
