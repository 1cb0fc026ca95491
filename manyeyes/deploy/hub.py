"""Uploading an exported model to the Hugging Face hub."""

from pathlib import Path

from manyeyes.io.packages import import_optional


def push(folder: Path, repository: str) -> str:
    """Upload a folder to a private repository of the hub, which is created if it does not exist; return its address."""
    hub = import_optional("huggingface_hub")
    try:
        api = hub.HfApi()
        repo_id = api.create_repo(repository, private=True, exist_ok=True).repo_id
        return str(api.upload_folder(repo_id=repo_id, folder_path=folder).pr_url or f"https://huggingface.co/{repo_id}")
    except (OSError, hub.errors.HfHubHTTPError, hub.errors.HFValidationError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(
            f"The upload of {folder} to {repository} failed ({reason}): check the name, and log in with `hf auth login`."
        ) from error
