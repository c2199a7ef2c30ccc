"""Which file has which name, against a plain dictionary."""

import random

import pytest

from ckpt._names import NUMBERS_MIN, Entry, entry_of, names_of, root_of


class Store:
    """What hosts hold, with clocks of the writers that go wrong."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.entries = []
        self.count = 0

    @property
    def names(self):
        return names_of(self.entries)

    def commit(self, path, of=None):
        self.count += 1
        now = self.random.randrange(1000)
        order = self.names.next_order(path, of, now)
        number = self.random.choice(self.names.free_numbers("r", 1))
        entry = Entry(f"r/files/{number}", 1, f"{self.count:032x}", path, order, of, self.count, 0)
        self.entries.append(entry)
        return entry

    def remove(self, entries, killed):
        """Removes entries in this order; a writer that is killed removes only the first of them."""
        for entry in entries:
            if killed and self.random.random() < 0.3:
                return False
            self.entries.remove(entry)
        return True


def sizes(names):
    return {path: entry.size for path, entry in names.files.items()}


@pytest.mark.parametrize("seed", range(200))
def test_names_are_those_of_a_plain_dictionary_though_writers_are_killed(seed):
    store, model = Store(seed), {}
    for _ in range(40):
        path, other = store.random.choices("abcd", k=2)
        choice = store.random.random()
        if choice < 0.5:
            model[path] = store.commit(path).size
            store.remove(store.names.replaced(path), killed=True)
        elif choice < 0.8 and path in model and path != other:
            if not store.remove(store.names.replaced(path), killed=True):
                continue
            store.commit(other, of=store.names.files[path].checkpoint)
            model[other] = model.pop(path)
            store.remove(store.names.replaced(other), killed=True)
        elif path in model:
            shown = store.names.files[path]
            store.remove(store.names.all_at(path), killed=True)
            if shown not in store.entries:
                del model[path]
        assert sizes(store.names) == model
    store.remove(store.names.dangling(), killed=False)
    for path in "abcd":
        store.remove(store.names.replaced(path), killed=False)
    assert sizes(store.names) == model
    assert len(store.entries) <= 2 * len(model)


def test_a_replaced_file_that_was_renamed_goes_with_its_name():
    store = Store(1)
    moved = store.commit("a")
    name = store.commit("b", of=moved.checkpoint)
    store.commit("b")
    assert store.names.replaced("b") == [moved, name]
    assert store.names.replaced("a") == []


def test_numbers_are_used_again():
    store = Store(2)
    for _ in range(300):
        store.commit("a")
        store.remove(store.names.replaced("a"), killed=False)
    jobs = {f"r/files/{number}" for number in range(NUMBERS_MIN)}
    assert {entry.job for entry in store.entries} <= jobs
    assert len(store.names.free_numbers("r", 1)) == NUMBERS_MIN - 1


def test_other_checkpoints_are_no_files():
    listed = {
        "job": "42",
        "version": 1,
        "checkpoint": "0" * 32,
        "image_bytes": 1,
        "created": 0,
        "void": False,
        "kept_for": None,
        "labels": {"kind": "test"},
    }
    assert entry_of(listed) is None
    file = {**listed, "labels": {"fs.path": "a", "fs.order": "7"}}
    assert entry_of(file).path == "a"
    assert entry_of({**file, "labels": {"fs.path": "a", "fs.order": "x"}}) is None
    assert entry_of({**file, "void": True}) is None
    assert entry_of({**file, "kept_for": 3}) is None


def test_roots_are_components_of_job_names():
    assert root_of("run1/step-8/x") == "run1"
    assert root_of("päth with space/x") == "p+c3+a4th+20with+20space"
    assert root_of("../x") == "+.."
    assert root_of("+") == "+2b"
