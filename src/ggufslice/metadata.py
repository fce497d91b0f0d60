"""Key-value metadata that keeps the bytes it came in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

import attrs

from ggufslice.errors import MetadataKeyError
from ggufslice.values import Record, infer_type

__all__ = ["Metadata"]


def _record_tuple(records: Iterable[Record]) -> tuple[Record, ...]:
    return tuple(records)


@attrs.frozen
class Metadata(Mapping[str, Any]):
    """Key-value metadata: a mapping of key to decoded value that keeps each record's type and exact bytes."""

    records: tuple[Record, ...] = attrs.field(
        default=(), converter=_record_tuple, repr=lambda records: f"<{len(records)} records>"
    )
    byteorder: str = "little"

    @cached_property
    def _index(self) -> dict[str, Record]:
        return {record.key: record for record in self.records}

    def _record(self, key: str) -> Record:
        try:
            return self._index[key]
        except KeyError:
            raise MetadataKeyError.among(key, self._index, "this model") from None

    def __getitem__(self, key: str) -> Any:
        return self._record(key).value

    def __iter__(self) -> Iterator[str]:
        return iter(self._index)

    def __len__(self) -> int:
        return len(self.records)

    def __contains__(self, key: object) -> bool:
        return key in self._index

    def get(self, key: str, default: Any = None) -> Any:
        """Return the decoded value of a key, or the default; without the search for similar keys that an error costs."""
        record = self._index.get(key)
        return default if record is None else record.value

    def type(self, key: str) -> str:
        """Return the value's type, such as ``u32`` or ``arr[str]``."""
        return self._record(key).type

    def raw(self, key: str) -> bytes:
        """Return the exact bytes of the whole record: key, type and value."""
        return self._record(key).raw

    def set(self, values: Mapping[str, Any], *, types: Mapping[str, str] | None = None) -> Metadata:
        """Return metadata with these values; a key that is there keeps its place, a new one goes to the end.

        Parameters
        ----------
        values
            Key to value.
        types
            Key to type, such as ``u32`` or ``arr[f32]``. Without one a key keeps the type it has; a new key needs one unless
            its value is text or a bool.

        Raises
        ------
        ValueError
            A value that does not fit its type, or a new number without a type.
        """
        index = dict(self._index)
        for key, value in values.items():
            type_ = (types or {}).get(key) or (index[key].type if key in index else infer_type(value))
            if type_ is None:
                raise ValueError(
                    f"metadata key {key!r} is new: say which type {value!r} has, such as types={{{key!r}: 'u32'}}"
                )
            index[key] = Record.of(key, value, type_, byteorder=self.byteorder)
        return Metadata(tuple(index.values()), self.byteorder)

    def remove(self, keys: Iterable[str]) -> Metadata:
        """Return metadata without these keys; keys that aren't there are ignored."""
        gone = set(keys)
        return Metadata(tuple(r for r in self.records if r.key not in gone), self.byteorder)
