"""
Mass splitting on the line
==========================

Cutting an atom in two beats moving whole atoms when one atom sits near the origin and the other far away.
"""

import howsmooth as hs
from howsmooth.report.charts import splitting_chart

found = hs.splitting_map(A=-1.0, step=0.15)
print(f"{found.share:.1%} of the pairs split")

chart = splitting_chart(found)
