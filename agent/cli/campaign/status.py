"""`cudal2-agent campaign status`."""

from cudal2_agent.agent.cli.arguments import AsJson
from cudal2_agent.agent.cli.campaign.run import NAME, CampaignName

EXAMPLE = "\b\nExample:\n  cudal2-agent campaign status --name small"


def status(name: CampaignName = NAME, as_json: AsJson = False) -> None:
    """How far a campaign is: shapes or modules, speedups by class, cost, and what failed."""
    from cudal2_agent.agent.cli.render.campaign_table import print_campaign
    from cudal2_agent.contract.settings.settings import load_settings
    from cudal2_agent.store.campaign_queue import CampaignQueue
    from cudal2_agent.store.store import open_store

    with open_store(load_settings().store_url) as store:
        queue = CampaignQueue(store, name)
        queue.record()
        print_campaign(queue, queue.failed(), as_json=as_json)
