import pytest

from tests.unit.schemas.double import registry_double
from tidelog.errors import ConfigError
from tidelog.schemas import registry as module
from tidelog.schemas.problems import RegistryDown, RegistryRefused
from tidelog.schemas.registry import Registry, Schema

ORDER = Schema("AVRO", '{"type": "record", "name": "Order", "fields": []}')


@pytest.fixture
def double():
    with registry_double() as made:
        yield made


def test_a_schema_is_registered_found_and_asked_for_once(double):
    registry = Registry(double.url)

    number = registry.register("orders-value", ORDER)

    assert registry.latest("orders-value").id == number
    assert [registry.schema(number) for _ in range(3)] == [ORDER] * 3
    assert double.asked.count(f"GET /schemas/ids/{number}") == 1


def test_a_subject_may_have_any_name(double):
    Registry(double.url).register("a/b c-value", ORDER)
    assert list(double.subjects) == ["a/b c-value"]


def test_what_is_refused_says_what_to_do(double):
    registry = Registry(double.url)
    with pytest.raises(RegistryRefused, match=r"/schemas/ids/7 \(404: Schema not found\); the id"):
        registry.schema(7)
    registry.register("orders-value", ORDER)
    double.incompatible = True
    with pytest.raises(RegistryRefused, match=r"409.*the subject's compatibility"):
        registry.register("orders-value", Schema("AVRO", '"string"'))
    double.user_info = "me:secret"
    with pytest.raises(RegistryRefused, match=r"basic\.auth\.user\.info"):
        registry.latest("orders-value")
    assert Registry(double.url, user_info="me:secret").latest("orders-value").id == 1


def test_a_registry_that_is_down_is_named(double, monkeypatch):
    monkeypatch.setattr(module, "PAUSE_SECONDS", 0)
    with registry_double() as other:
        gone = other.url
    with pytest.raises(RegistryDown, match=f"{gone} cannot be asked for /schemas/ids/1"):
        Registry(gone).schema(1)


def test_an_address_that_is_none_is_refused():
    with pytest.raises(ConfigError, match="must be http:// or https://"):
        Registry("localhost:8081")
