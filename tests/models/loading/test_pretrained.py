"""What the loader of models does with files."""

import pytest

from howsmooth.models.loading.pretrained import _parsing_once


def test_while_a_model_is_loaded_its_file_is_parsed_once(tmp_path):
    gguf = pytest.importorskip("gguf")
    path = str(tmp_path / "model.gguf")
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with _parsing_once():
        assert gguf.GGUFReader(path) is gguf.GGUFReader(path)
        assert gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 2) is gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 2)
    assert gguf.GGUFReader(path) is not gguf.GGUFReader(path)
