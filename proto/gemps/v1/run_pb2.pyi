from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RunState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RUN_STATE_UNSPECIFIED: _ClassVar[RunState]
    RUN_STATE_WAITING: _ClassVar[RunState]
    RUN_STATE_TRAINING: _ClassVar[RunState]
    RUN_STATE_FINISHED: _ClassVar[RunState]

class ServingOrder(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SERVING_ORDER_UNSPECIFIED: _ClassVar[ServingOrder]
    SERVING_ORDER_FIFO: _ClassVar[ServingOrder]
    SERVING_ORDER_ROUND_ROBIN: _ClassVar[ServingOrder]

class EtaSchedule(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ETA_SCHEDULE_UNSPECIFIED: _ClassVar[EtaSchedule]
    ETA_SCHEDULE_CONSTANT: _ClassVar[EtaSchedule]
    ETA_SCHEDULE_STEP: _ClassVar[EtaSchedule]
    ETA_SCHEDULE_COSINE: _ClassVar[EtaSchedule]
RUN_STATE_UNSPECIFIED: RunState
RUN_STATE_WAITING: RunState
RUN_STATE_TRAINING: RunState
RUN_STATE_FINISHED: RunState
SERVING_ORDER_UNSPECIFIED: ServingOrder
SERVING_ORDER_FIFO: ServingOrder
SERVING_ORDER_ROUND_ROBIN: ServingOrder
ETA_SCHEDULE_UNSPECIFIED: EtaSchedule
ETA_SCHEDULE_CONSTANT: EtaSchedule
ETA_SCHEDULE_STEP: EtaSchedule
ETA_SCHEDULE_COSINE: EtaSchedule

class Budget(_message.Message):
    __slots__ = ("steps", "epochs", "commits")
    STEPS_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    steps: int
    epochs: float
    commits: int
    def __init__(self, steps: _Optional[int] = ..., epochs: _Optional[float] = ..., commits: _Optional[int] = ...) -> None: ...

class Recipe(_message.Message):
    __slots__ = ("kind", "optimizer", "groups", "group_of_parameter")
    KIND_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    GROUP_OF_PARAMETER_FIELD_NUMBER: _ClassVar[int]
    kind: str
    optimizer: str
    groups: _containers.RepeatedCompositeFieldContainer[RecipeGroup]
    group_of_parameter: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, kind: _Optional[str] = ..., optimizer: _Optional[str] = ..., groups: _Optional[_Iterable[_Union[RecipeGroup, _Mapping]]] = ..., group_of_parameter: _Optional[_Iterable[int]] = ...) -> None: ...

class RecipeGroup(_message.Message):
    __slots__ = ("settings",)
    class SettingsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    settings: _containers.ScalarMap[str, float]
    def __init__(self, settings: _Optional[_Mapping[str, float]] = ...) -> None: ...

class RunSettings(_message.Message):
    __slots__ = ("rule", "rule_settings", "eta", "eta_schedule", "budget", "order", "min_workers", "seed", "local_steps", "normalise_local_steps", "local_rate", "scale_local_steps", "direction", "clip_norm", "recipe")
    class RuleSettingsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    RULE_FIELD_NUMBER: _ClassVar[int]
    RULE_SETTINGS_FIELD_NUMBER: _ClassVar[int]
    ETA_FIELD_NUMBER: _ClassVar[int]
    ETA_SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    BUDGET_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    MIN_WORKERS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    LOCAL_STEPS_FIELD_NUMBER: _ClassVar[int]
    NORMALISE_LOCAL_STEPS_FIELD_NUMBER: _ClassVar[int]
    LOCAL_RATE_FIELD_NUMBER: _ClassVar[int]
    SCALE_LOCAL_STEPS_FIELD_NUMBER: _ClassVar[int]
    DIRECTION_FIELD_NUMBER: _ClassVar[int]
    CLIP_NORM_FIELD_NUMBER: _ClassVar[int]
    RECIPE_FIELD_NUMBER: _ClassVar[int]
    rule: str
    rule_settings: _containers.ScalarMap[str, float]
    eta: float
    eta_schedule: EtaSchedule
    budget: Budget
    order: ServingOrder
    min_workers: int
    seed: int
    local_steps: int
    normalise_local_steps: bool
    local_rate: float
    scale_local_steps: bool
    direction: str
    clip_norm: float
    recipe: Recipe
    def __init__(self, rule: _Optional[str] = ..., rule_settings: _Optional[_Mapping[str, float]] = ..., eta: _Optional[float] = ..., eta_schedule: _Optional[_Union[EtaSchedule, str]] = ..., budget: _Optional[_Union[Budget, _Mapping]] = ..., order: _Optional[_Union[ServingOrder, str]] = ..., min_workers: _Optional[int] = ..., seed: _Optional[int] = ..., local_steps: _Optional[int] = ..., normalise_local_steps: bool = ..., local_rate: _Optional[float] = ..., scale_local_steps: bool = ..., direction: _Optional[str] = ..., clip_norm: _Optional[float] = ..., recipe: _Optional[_Union[Recipe, _Mapping]] = ...) -> None: ...
