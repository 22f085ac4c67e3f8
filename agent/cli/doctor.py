"""`cudal2-agent doctor`: what this machine can do, with a remedy for each missing part."""

import json

import typer

from cudal2_agent.agent.cli.arguments import AsJson, Device

EXAMPLE = "\b\nExample:\n  cudal2-agent doctor\n  cudal2-agent doctor --device spool:/shared/spool"


def doctor(device: Device = None, as_json: AsJson = False) -> None:
    """Check packages, compiler, GPU, baselines and folders. Fails only where `optimize` cannot work."""
    from cudal2_agent.agent.wiring.doctor import examine
    from cudal2_agent.contract.settings.settings import load_settings

    checks = examine(load_settings(device=device))
    works = all(check.ok for check in checks if check.needed)
    if as_json:
        print(json.dumps({"works": works, "checks": [check.model_dump(mode="json") for check in checks]}))
    else:
        for check in checks:
            mark = "ok" if check.ok else "MISSING" if check.needed else "absent"
            print(f"{mark:<8} {check.name:<22} {check.detail}")
            if not check.ok:
                print(f"{'':<8} {'':<22} remedy: {check.remedy}")
        print("optimize works on this machine" if works else "optimize does not work on this machine yet")
    raise typer.Exit(0 if works else 1)
